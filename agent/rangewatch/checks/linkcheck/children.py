"""Child processes made by fork: torch is loaded already, so that one costs milliseconds and not seconds.

Who forks here has not started CUDA and computes nothing, so no library's threads are torn out of their work.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Collection
from typing import IO

LOG_BYTES = 4000
"""The end of a child's output that is kept: a Python stack, or the last lines of NCCL_DEBUG."""
KILL_S = 3.0
"""For a killed process to be gone. One that a driver holds may never be, and its rank is to be heard of meanwhile."""
_DIE_WITH_PARENT = 1  # Linux: PR_SET_PDEATHSIG


class Child:
    """A forked process, the lines that it sends over a pipe, and the file with what it and its libraries print."""

    def __init__(self, pid: int, pipe: int, log: IO[bytes] | None) -> None:
        self.pid = pid
        self.status: int | None = None
        """As `os.waitstatus_to_exitcode` gives it, when it has ended: negative for a signal."""
        self._pipe, self._log = pipe, log
        self._poll = select.poll()  # select() takes no descriptor above 1,023, and a thousand ranks have more
        self._poll.register(pipe, select.POLLIN)
        self._unread = b""

    @staticmethod
    def fork(body: Callable[[Callable[[bytes], None]], None], *, is_quiet: bool = False) -> Child:
        """Run `body(send)` in a child, `send` taking one line. `is_quiet`: its output goes to a file, see `log`.

        Raises `OSError` where no process, pipe or file can be had.
        """
        log = tempfile.TemporaryFile() if is_quiet else None  # noqa: SIM115  closed with the child
        read, write = os.pipe()
        parent = os.getpid()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # its reader may be gone, which is no reason to start nothing
                stream.flush()
        # A Ctrl-C between the fork and the child's own handlers would run the parent's clean-up twice.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            pid = _fork()
            if pid == 0:
                os.close(read)
                _be_child(body, write, log, parent, mask)
        except OSError:
            os.close(read)
            raise
        finally:
            os.close(write)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return Child(pid, read, log)

    def lines(self, timeout_s: float) -> list[bytes] | None:
        """Whole lines that have come, waiting at most `timeout_s` for the first; None when the child is at its end."""
        if not self._poll.poll(1000 * timeout_s):
            return []
        piece = os.read(self._pipe, 1 << 16)
        if not piece:
            return None
        *whole, self._unread = (self._unread + piece).split(b"\n")
        return whole

    def has_ended(self) -> bool:
        """Whether it has; never waits."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; whether it came in time."""
        end_s = time.monotonic() + timeout_s
        while not self.has_ended() and time.monotonic() < end_s:
            time.sleep(0.005)
        return self.has_ended()

    def dump_stack(self) -> None:
        """Have it write its Python stack to its log, which works while its thread hangs in a library."""
        if not self.has_ended():
            os.kill(self.pid, signal.SIGUSR1)
            self.wait(0.2)

    def kill(self) -> None:
        """End it for certain, stopped ones too."""
        if not self.has_ended():
            os.kill(self.pid, signal.SIGKILL)
            self.wait(KILL_S)

    def log(self) -> str:
        """The end of what it printed. A Python stack ends where ours begins: who forked the child is known."""
        if self._log is None:
            return ""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(size - LOG_BYTES, 0))
        lines = self._log.read().decode(errors="replace").splitlines()
        ours = next((at for at, line in enumerate(lines) if f"in {_be_child.__name__}" in line), len(lines))
        return "\n".join(lines[:ours]).strip()

    def close(self) -> None:
        """End it, and let go of pipe and file."""
        self.kill()
        os.close(self._pipe)
        if self._log is not None:
            self._log.close()


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the threads are numpy's, which holds them at a fork
        return os.fork()


def _be_child(
    body: Callable[[Callable[[bytes], None]], None],
    write: int,
    log: IO[bytes] | None,
    parent: int,
    mask: Collection[int],
) -> None:
    """Never returns: what the parent has registered for its own exit is not the child's to run."""
    status = 1
    try:
        _die_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends its children
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if log is not None:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            faulthandler.enable(2)
            faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
        body(lambda line: _write(write, line + b"\n"))
        status = 0
    finally:
        if status:
            traceback.print_exc()
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(status)


def _die_with(parent: int) -> None:
    """A parent that is killed must not leave processes behind that hold GPUs. Only Linux can be asked for that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def _write(pipe: int, line: bytes) -> None:
    while line:
        line = line[os.write(pipe, line) :]
