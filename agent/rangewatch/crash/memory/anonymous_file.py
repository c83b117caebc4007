"""Anonymous memory as a file: it grows, other processes can map it, and it is gone when nobody holds it any more."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import finalize

IS_SUPPORTED = hasattr(os, "memfd_create") and hasattr(os, "pidfd_open")
"""Linux from 5.3 on; elsewhere the same is kept in memory of the process's own, and is gone with it."""


Pages = mmap.mmap | bytearray


class Memory:
    """Pages that are written by stores. `descriptor` -1: private ones, of no file.

    Raises `OSError` where the kernel gives none.
    """

    def __init__(self, name: str, *, is_shared: bool) -> None:
        self.descriptor = os.memfd_create(name, os.MFD_CLOEXEC) if is_shared and IS_SUPPORTED else -1
        self._let_go = _closing(self, self.descriptor)
        self.nbytes = 0

    def add(self, nbytes: int) -> tuple[Pages, int]:
        """`nbytes` more, all zero until written, and their offset."""
        nbytes = -(-nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        offset = self.nbytes
        if self.descriptor < 0:
            pages: Pages = bytearray(nbytes)
        else:
            os.ftruncate(self.descriptor, offset + nbytes)
            if _is_strict():
                os.posix_fallocate(self.descriptor, offset, nbytes)
            pages = mmap.mmap(self.descriptor, nbytes, offset=offset)
        self.nbytes += nbytes
        return pages, offset

    def close(self) -> None:
        """Let go of the file; what is mapped stays mapped."""
        self.descriptor = -1
        self._let_go()


def free(pages: Pages) -> None:
    """Give the memory back to the kernel: all of `pages` is zero from here on."""
    if isinstance(pages, mmap.mmap):
        with contextlib.suppress(OSError, AttributeError, ValueError):
            pages.madvise(mmap.MADV_REMOVE)


def _is_strict() -> bool:
    """Whether a first store may fail for want of memory (SIGBUS): the kernel commits to no more than it has."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
    return False


class Log:
    """Records appended to an anonymous file, by any thread: no page of it is mapped, and one write is one record.

    Kept for the watcher alone: with no file, or past `most` bytes, nothing is.
    """

    def __init__(self, name: str, most: int, *, is_shared: bool) -> None:
        self.descriptor, self._most, self._nbytes = -1, most, 0
        if is_shared and IS_SUPPORTED:
            self.descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        self._let_go = _closing(self, self.descriptor)

    def append(self, record: bytes) -> None:
        """Add a record. Never raises."""
        if self.descriptor < 0:
            return
        self._nbytes += 4 + len(record)
        if self._nbytes > self._most:
            return
        with contextlib.suppress(OSError):
            os.write(self.descriptor, len(record).to_bytes(4, "little") + record)

    @property
    def nbytes(self) -> int:
        """Bytes that were given to it since it was emptied."""
        return self._nbytes

    def clear(self) -> None:
        """Empty it."""
        self._nbytes = 0
        if self.descriptor >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self.descriptor, 0)
                os.lseek(self.descriptor, 0, os.SEEK_SET)

    def close(self) -> None:
        """Let go of the file."""
        self.descriptor = -1
        self._let_go()


def _closing(owner: object, descriptor: int) -> Callable[[], object]:
    """Closes a descriptor once: when it is called, or when the garbage collector takes `owner` (an `attach` that failed
    has nobody who closes). Not at the end of the process, when the watcher is about to read.
    """
    closing = finalize(owner, _close, descriptor)
    closing.atexit = False
    return closing


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def records(descriptor: int) -> list[bytes]:
    """The records of a log; a last one that was not written whole is left out."""
    data = read_all(descriptor)
    read, at = [], 0
    while at + 4 <= len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        if end > len(data):
            break
        read.append(data[at + 4 : end])
        at = end
    return read


def read_all(descriptor: int, most: int = 1 << 30) -> bytes:
    """What is in an anonymous file."""
    pieces: list[Any] = []
    at = 0
    while at < most and (piece := os.pread(descriptor, min(1 << 20, most - at), at)):
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces)
