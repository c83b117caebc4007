"""Python stacks of this process as evidence of a hang: all threads, and the line of the user's code that waits.

Where the interpreter itself is stuck see `stuck_timer`; what that has written is found here by the other ranks.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import sysconfig
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from rangewatch.collectors.stuck_timer import TEXT_CHARACTERS

_OWN = (str(Path(torch.__file__).parent) + os.sep, str(Path(__file__).parents[1]) + os.sep)
_DEMO = str(Path(__file__).parents[1] / "demo") + os.sep
_STANDARD = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_INSTALLED = ("site-packages", "dist-packages")


def line_of(thread_id: int) -> dict[str, Any] | None:
    """`file`, `line` and `function` of a thread's innermost frame outside torch, the standard library and ourselves."""
    innermost = sys._current_frames().get(thread_id)
    frame: FrameType | None = innermost
    while frame is not None and _is_foreign(frame.f_code.co_filename):
        frame = frame.f_back
    frame = frame or innermost
    if frame is None:
        return None
    return {"file": frame.f_code.co_filename, "line": frame.f_lineno, "function": frame.f_code.co_name}


def all_threads() -> str:
    """The stacks of every thread, innermost call first, as faulthandler writes them."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read(TEXT_CHARACTERS).decode("utf-8", "replace")


def stack_folder() -> Path:
    """Where ranks of one user leave their stacks for each other, on one host."""
    return Path(tempfile.gettempdir()) / f"rangewatch-stacks-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


def written_by_others(folder: Path, prefix: str, own: Path, within_s: float) -> dict[str, str]:
    """File name -> text of the stacks that other ranks' timers have written in the last `within_s` seconds."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for path in sorted(folder.glob(f"{prefix}*")):
            with contextlib.suppress(OSError):
                state = path.lstat()
                is_fresh = state.st_size > 0 and time.time() - state.st_mtime <= within_s
                if path != own and is_fresh and state.st_uid == folder.stat().st_uid and not path.is_symlink():
                    found[path.name] = path.read_text("utf-8", "replace")[:TEXT_CHARACTERS]
    return found


def training_thread() -> int:
    """The thread that trains: Python's main one."""
    return threading.main_thread().ident or 0


def _is_foreign(path: str) -> bool:
    if path.startswith((*_OWN, "<")):
        return not path.startswith(_DEMO)  # it is a training like any other
    return path.startswith(_STANDARD) and not any(part in path for part in _INSTALLED)
