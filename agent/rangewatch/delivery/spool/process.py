"""Whether the process that owns a spool still lives: by its lock on the folder, and by pid and start time."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

try:
    import fcntl
except ImportError:  # no such thing on Windows, where there is no spool then
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS = fcntl is not None


class Process(msgspec.Struct, frozen=True):
    """A process of this machine. `start_ticks`: clock ticks from boot to its start, 0 where nobody knows.

    `boot_id` and `pid_namespace` say where `pid` means this process: two containers may share a folder.
    """

    pid: int
    start_ticks: int = 0
    boot_id: str = ""
    pid_namespace: str = ""


def this_process() -> Process:
    """The one that calls."""
    boot_id, namespace = _place()
    return Process(os.getpid(), start_ticks(os.getpid()) or 0, boot_id, namespace)


def is_gone(process: Process) -> bool:
    """Whether `process` is known to have ended; False also where it cannot be known. A zombie has ended."""
    boot_id, namespace = _place()
    if process.boot_id != boot_id:
        return bool(process.boot_id and boot_id)
    if process.pid_namespace != namespace:
        return False
    ticks = start_ticks(process.pid)
    if ticks is None:
        return not is_there(process.pid)
    return ticks == 0 or (process.start_ticks != 0 and ticks != process.start_ticks)


def start_ticks(pid: int) -> int | None:
    """When the process `pid` started, in clock ticks since boot; 0: it is a zombie; None: no /proc, or no process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock until it is closed; None when another process has it.

    Also what keeps systemd-tmpfiles from ageing files out of a folder in use. Where the file system has no locks the
    descriptor holds nothing. Raises `OSError`.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        pass
    return descriptor


def is_there(pid: int) -> bool:
    """Whether this machine has a process of that number, as far as this process's namespace shows."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _place() -> tuple[str, str]:
    boot_id = namespace = ""
    with contextlib.suppress(OSError):
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with contextlib.suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return boot_id, namespace
