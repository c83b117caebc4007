"""Python runs this at its start where the folder is on PYTHONPATH: waits for torch, then runs the site's own file."""

import importlib
import os
import sys


def _wait_for_torch() -> None:
    if os.environ.get("RANGEWATCH_AUTO_ATTACH") != "1":
        return
    try:
        from rangewatch.autoattach import import_hook  # noqa: PLC0415 - only where it is asked for

        import_hook.install()
    except Exception as error:  # noqa: BLE001 - whatever it is, the script must run
        sys.stderr.write(f"rangewatch: not attached: {type(error).__name__}: {error} (with {sys.executable})\n")


def _run_next() -> None:
    """Python looks for one such file only: the one that this stands before must not be missed."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs each start 5 ms
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != here]  # noqa: PTH100
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


_wait_for_torch()
_run_next()
