"""How a process ended, from its pidfd: the exit code or the signal, whoever its parent is."""

from __future__ import annotations

import contextlib
import re
import signal
import struct
from pathlib import Path
from typing import NamedTuple

try:
    import fcntl
except ImportError:  # Windows, where no watcher runs
    fcntl = None  # type: ignore[assignment]

_INFO = struct.Struct("<QQ11Ii")
"""`struct pidfd_info` as of Linux 6.13: mask, cgroup id, eleven ids, exit code."""

_GET_INFO = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11
"""`PIDFD_GET_INFO`, an _IOWR of that size."""

_HAS_EXIT = 1 << 3
"""`PIDFD_INFO_EXIT`, from Linux 6.15 on: the exit code of a process that its parent has waited for."""

_FATAL = {
    "Segmentation fault": signal.SIGSEGV, "Aborted": signal.SIGABRT, "Floating": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
} | ({"Bus error": signal.SIGBUS} if hasattr(signal, "SIGBUS") else {})  # fmt: skip


class Ending(NamedTuple):
    """`exit_code` or `signal` (with `core_dumped`); both None where nobody could tell, and of a process that goes on
    as another program (`exec`).
    """

    exit_code: int | None = None
    signal: int | None = None
    core_dumped: bool = False
    is_replaced: bool = False

    @property
    def is_known(self) -> bool:
        """Whether it is known at all."""
        return self.exit_code is not None or self.signal is not None


def of_process(pidfd: int, pid: int, start_ticks: int) -> Ending:
    """Of a process that has ended, for which `pidfd` was opened while it lived.

    While its parent has not waited for it, /proc has the exit code; from then on the pidfd (Linux 6.15).
    """
    for _ in range(2):  # it may be waited for between the two looks
        status = _from_pidfd(pidfd)
        if status is None:
            status = _from_zombie(pid, start_ticks)
        if status is not None:
            return _ending(status)
    return Ending()


def from_stack(text: str) -> Ending:
    """The signal that faulthandler wrote down, where the kernel does not tell."""
    found = re.match(r"Fatal Python error: ([A-Z][a-z]+(?: [a-z]+)?)", text)
    for words, number in _FATAL.items():
        if found and found[1].startswith(words):
            return Ending(signal=int(number))
    return Ending()


def _ending(status: int) -> Ending:
    if status & 0x7F:
        return Ending(signal=status & 0x7F, core_dumped=bool(status & 0x80))
    return Ending(exit_code=status >> 8 & 0xFF)


def _from_pidfd(pidfd: int) -> int | None:
    info = bytearray(_INFO.pack(_HAS_EXIT, *[0] * 13))
    with contextlib.suppress(OSError):
        fcntl.ioctl(pidfd, _GET_INFO, info)
        mask, *_, status = _INFO.unpack(info)
        if mask & _HAS_EXIT:
            return int(status)
    return None


def _from_zombie(pid: int, start_ticks: int) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        if fields[0] in (b"Z", b"X") and int(fields[19]) == start_ticks:
            return int(fields[49])
    return None


def signal_name(number: int) -> str:
    """Such as "SIGSEGV"; "" for one that has no name here."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return ""
