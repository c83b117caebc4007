"""Python stacks of this process as evidence of a hang: all threads, and the line of the user's code that waits.

Where the interpreter itself is stuck (a C call that never gives the GIL back) no thread of ours can run. For that a
timer of `faulthandler` is wound up again every second: when nobody does so any more, it writes the stacks to a file
without needing the GIL. The file lies where the other ranks of the host find it and send it.

`faulthandler` has one such timer a process. Whoever else uses it has precedence: it is left alone where any module but
torch's has imported faulthandler before, and from the moment that somebody else sets it.
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
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch

TEXT_CHARACTERS = 32_000
"""Longest text of stacks that is sent: some hundred frames of each of ten threads."""

OLD_S = 86_400.0
"""Seconds after which a file of stacks is of no process that runs: those touch theirs every second."""

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


class StuckTimer:
    """Writes the stacks to `path` when `wind` has not been called for `after_s` seconds. On the collectors' thread."""

    def __init__(self, path: Path, after_s: float) -> None:
        self._path, self._after_s = path, after_s
        self._file: Any = None
        self._originals: list[tuple[str, Callable[..., Any], Callable[..., Any]]] = []
        self.why_not = ""
        """Why there is no timer; "" when there is one."""

    def start(self) -> None:
        """Set the timer, if nobody else uses it; otherwise `why_not` says so."""
        users = other_users()
        if users:
            self.why_not = f"{users[0]} uses faulthandler, which has one timer a process"
            return
        try:
            self._file = _private(self._path)
            _forget_old(self._path.parent)
        except OSError as error:
            self.why_not = f"{self._path.parent} cannot be written: {error.strerror}"
            return
        for name in ("dump_traceback_later", "cancel_dump_traceback_later"):
            self._watch_use(name)
        self.wind()

    def wind(self) -> str:
        """Start the time anew. Returns what was written since the last call, "" as long as nobody was stuck."""
        if self._file is None or self.why_not:
            return ""
        self._set()
        os.utime(self._file.fileno())  # it is in use, see `_forget_old`
        if self._file.seek(0, os.SEEK_END) == 0:
            return ""
        self._file.seek(0)
        text = str(self._file.read(TEXT_CHARACTERS))
        self._file.seek(0)
        self._file.truncate()
        return text

    def stop(self) -> None:
        """Take the timer away, and the file."""
        if self._file is None:
            return
        if not self.why_not:
            self._original("cancel_dump_traceback_later")()
        for name, original, wrapper in self._originals:
            if getattr(faulthandler, name) is wrapper:
                setattr(faulthandler, name, original)
        self._file.close()
        self._file = None
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _set(self) -> None:
        self._original("dump_traceback_later")(self._after_s, repeat=False, file=self._file, exit=False)

    def _original(self, name: str) -> Callable[..., Any]:
        return next(original for each, original, _ in self._originals if each == name)

    def _watch_use(self, name: str) -> None:
        original = getattr(faulthandler, name)

        def used(*args: Any, **kwargs: Any) -> Any:
            self.why_not = "it has been set by somebody else since"
            return original(*args, **kwargs)

        self._originals.append((name, original, used))
        setattr(faulthandler, name, used)


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


def other_users() -> list[str]:
    """Modules that have imported faulthandler or its timer, but for torch's, pytest's entry points and ours."""
    return [
        name
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and not name.startswith(("torch.", "rangewatch.", "faulthandler"))
        if any(
            value is faulthandler or value is faulthandler.dump_traceback_later for value in list(vars(module).values())
        )
    ]


def training_thread() -> int:
    """The thread that trains: Python's main one."""
    return threading.main_thread().ident or 0


def _private(path: Path) -> Any:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    state = path.parent.lstat()
    if hasattr(os, "getuid") and (state.st_uid != os.getuid() or path.parent.is_symlink()):
        raise PermissionError(1, "it belongs to somebody else")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o600)
    return os.fdopen(descriptor, "w+", encoding="utf-8", errors="replace")


def _forget_old(folder: Path) -> None:
    """Files of processes that were killed."""
    for path in folder.glob("*.txt"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > OLD_S:
                path.unlink()


def _is_foreign(path: str) -> bool:
    if path.startswith((*_OWN, "<")):
        return not path.startswith(_DEMO)  # it is a training like any other
    return path.startswith(_STANDARD) and not any(part in path for part in _INSTALLED)
