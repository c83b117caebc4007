"""The stack of a process whose interpreter is stuck: a C call that spins and never gives back the GIL.

No thread of ours can run then. A timer of the kernel counts the main thread's own CPU time and is wound up again every
second; when nobody does so any more, it signals the main thread, where `faulthandler` writes that thread's stack to a
file without needing the GIL. The file lies where the other ranks of the host find it and send it.

CPU time and not the clock's, and a signal and not `faulthandler.dump_traceback_later`: a process that was suspended and
goes on, or is starved of CPUs, would have its frames read while they change. Measured (Python 3.11): the latter ends a
training with a segmentation fault at one of 25 such readings. So a call that sleeps with the GIL held leaves no stack.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any
from weakref import WeakSet

TEXT_CHARACTERS = 32_000
"""Longest text of stacks that is sent: some hundred frames of each of ten threads."""

OLD_S = 86_400.0
"""Seconds after which a file of stacks is of no process that runs: those touch theirs every second."""

WIND_EVERY_S = 1.0
THREAD = "rangewatch-stacks"

_SIGEV_THREAD_ID = 4
_SIGEVENT_BYTES = 64
_STATUS = Path("/proc/self/status")

_started: WeakSet[StuckTimer] = WeakSet()


@atexit.register
def _disarm() -> None:
    """Once the interpreter has gone nobody catches the signal, and it would end the process."""
    for each in list(_started):
        each.disarm()


class StuckTimer:
    """Writes the main thread's stack to `path` when that has computed for `after_s` seconds and nobody else could."""

    def __init__(self, path: Path, after_s: float) -> None:
        self._path, self._after_s = path, after_s
        self._file: Any = None
        self._timer: _CpuTimer | None = None
        self._signal = 0
        self._stop = threading.Event()
        # Of its own, as a collector may wait for a driver meanwhile: that is no stuck interpreter.
        self._thread = threading.Thread(target=self._wind_often, name=THREAD, daemon=True)
        self.why_not = "not started"
        """Why there is no timer; "" when there is one."""

    def start(self) -> None:
        """Set the timer, where the system has such; otherwise `why_not` says so."""
        try:
            self._begin()
            self.why_not = ""
        except OSError as error:
            self.why_not = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror or error)
            self.stop()

    def wind(self) -> str:
        """Start the time anew. Returns what was written since the last call, "" as long as nobody was stuck."""
        timer = self._timer
        if self._file is None or timer is None:
            return ""
        timer.set(self._after_s)
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
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self.disarm()
        if self._signal:
            faulthandler.unregister(self._signal)  # with no timer left to send it: nobody would be there to take it
            self._signal = 0
        if self._file is not None:
            self._file.close()
            self._file = None
            with contextlib.suppress(OSError):
                self._path.unlink()

    def disarm(self) -> None:
        """The timer alone: nothing is waited for."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.delete()

    def _begin(self) -> None:
        if not sys.platform.startswith("linux"):
            raise OSError("timers that signal one thread are Linux's")
        number = _free_signal()
        self._file = _private(self._path)
        _forget_old(self._path.parent)
        faulthandler.register(number, file=self._file, all_threads=False)
        self._signal = number
        self._timer = _CpuTimer(number)
        self._timer.set(self._after_s)
        _started.add(self)
        self._thread.start()

    def _wind_often(self) -> None:
        while not self._stop.wait(min(WIND_EVERY_S, self._after_s / 4)):
            timer = self._timer
            if timer is not None:
                with contextlib.suppress(OSError):  # it is being taken away
                    timer.set(self._after_s)


class _SigEvent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("padding", ctypes.c_char * (_SIGEVENT_BYTES - ctypes.sizeof(ctypes.c_void_p) - 12)),
    )


class _Spec(ctypes.Structure):
    _fields_ = (("every_s", ctypes.c_long), ("every_ns", ctypes.c_long), ("s", ctypes.c_long), ("ns", ctypes.c_long))


class _CpuTimer:
    """Sends a signal to the main thread, once, when that has used so much CPU time. Raises OSError."""

    def __init__(self, number: int) -> None:
        self._library = _library()
        self._timer = ctypes.c_void_p()
        main_thread = os.getpid()  # Linux numbers it as the process; Python's `native_id` is the parent's after a fork
        event = _SigEvent(None, number, _SIGEV_THREAD_ID, main_thread)
        clock = time.pthread_getcpuclockid(threading.main_thread().ident or 0)
        self._check(self._library.timer_create(ctypes.c_int(clock), ctypes.byref(event), ctypes.byref(self._timer)))

    def set(self, after_s: float) -> None:
        """Begin anew."""
        whole_s = int(after_s)
        spec = _Spec(0, 0, whole_s, int((after_s - whole_s) * 1e9))
        self._check(self._library.timer_settime(self._timer, 0, ctypes.byref(spec), None))

    def delete(self) -> None:
        """Never send it."""
        self._library.timer_delete(self._timer)

    @staticmethod
    def _check(result: int) -> None:
        if result:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "timer_create"):  # glibc before 2.34
        library = ctypes.CDLL("librt.so.1", use_errno=True)
    return library


def _free_signal() -> int:
    """A real-time signal that nobody in this process catches, ignores or blocks. Its default would end the process."""
    taken = 0
    for line in _STATUS.read_text().splitlines():
        if line.startswith(("SigBlk", "SigIgn", "SigCgt")):
            taken |= int(line.split()[1], 16)
    for number in range(signal.SIGRTMAX, signal.SIGRTMIN, -1):
        if not taken >> (number - 1) & 1:
            return number
    raise OSError("every real-time signal is in use")


def _private(path: Path) -> Any:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    state = path.parent.lstat()
    if hasattr(os, "getuid") and (state.st_uid != os.getuid() or path.parent.is_symlink()):
        raise PermissionError(1, "it belongs to somebody else", str(path.parent))
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o600)
    return os.fdopen(descriptor, "w+", encoding="utf-8", errors="replace")


def _forget_old(folder: Path) -> None:
    """Files of processes that were killed."""
    for path in folder.glob("*.txt"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > OLD_S:
                path.unlink()
