"""The last bytes of a text, in memory that outlives the process: what Python wrote to stderr.

    bytes 0 .. 7      bytes written since it began
    bytes 8 .. 15     pieces that were left out
    from HEADER_BYTES the ring

Stored last is the count, so that a process that is killed in between leaves what was there before: the reader keeps
away from the bytes that a write under way may have changed.
"""

from __future__ import annotations

import mmap
import os
import threading
from typing import NamedTuple

from rangewatch.core import limits
from rangewatch.crash.memory.anonymous_file import Memory

HEADER_BYTES = 64
RING_BYTES = limits.STDERR_BYTES + limits.STDERR_WRITE_BYTES
WRITTEN, DROPPED = 0, 1
LOCK_FAULTS = 5
"""Times that the lock was not to be had after which nothing is written any more: who holds it is gone for good."""


class Tail(NamedTuple):
    """The end of a text. `is_cut`: there was more before it, of whose last line the begin is missing."""

    data: bytes
    is_cut: bool
    dropped_count: int = 0


class TextRing:
    """Written by any thread, and by a signal handler in the middle of a write. Takes no memory after it was made.

    Raises `OSError` where the kernel gives none.
    """

    def __init__(self, name: str, *, is_shared: bool) -> None:
        self.memory = Memory(name, is_shared=is_shared)
        self._pages, _ = self.memory.add(HEADER_BYTES + RING_BYTES)
        self._pages[:] = bytes(len(self._pages))  # it has its memory from here on
        self._view = memoryview(self._pages)
        self._counts = self._view[:16].cast("q")
        # Of one thread again and again: a signal's handler may print. Not for ever: a daemon thread that the end of the
        # interpreter has stopped gives nothing back.
        self._lock = threading.RLock()
        self._lock_faults = 0

    def append(self, text: str) -> None:
        """Add to the text; a long one loses its begin, and the rest of that line."""
        if self._lock_faults >= LOCK_FAULTS:
            return
        cut = text[-limits.STDERR_WRITE_BYTES :].encode("utf-8", "backslashreplace")
        data = cut[-limits.STDERR_WRITE_BYTES :]
        is_cut = len(data) < len(cut) or len(text) > limits.STDERR_WRITE_BYTES
        if is_cut:
            data = b"\n" + data.partition(b"\n")[2]
        if not self._lock.acquire(timeout=limits.STDERR_LOCK_S):
            self._lock_faults += 1
            self._counts[DROPPED] += 1
            return
        try:
            self._counts[DROPPED] += is_cut
            self._store(data)
        finally:
            self._lock.release()

    def _store(self, data: bytes) -> None:
        written = self._counts[WRITTEN]
        at = written % RING_BYTES
        fits = min(len(data), RING_BYTES - at)
        ring = self._view[HEADER_BYTES : HEADER_BYTES + RING_BYTES]
        ring[at : at + fits] = data[:fits]
        ring[: len(data) - fits] = data[fits:]
        self._counts[WRITTEN] = written + len(data)

    @property
    def written(self) -> int:
        """Bytes since it began: other ones, other text."""
        return int(self._counts[WRITTEN])

    def tail(self) -> Tail:
        """What is in it."""
        is_still = self._lock.acquire(timeout=limits.STDERR_LOCK_S)
        try:
            return _tail(self._view[: HEADER_BYTES + RING_BYTES])
        finally:
            if is_still:
                self._lock.release()

    def close(self) -> None:
        """Let go of the file; the watcher may hold it still."""
        self.memory.close()


def read_ring(descriptor: int) -> Tail:
    """The tail in another process's ring. Raises `OSError` or `ValueError` for what is none."""
    if os.fstat(descriptor).st_size < HEADER_BYTES + RING_BYTES:
        raise ValueError("the memory is too short")
    with mmap.mmap(descriptor, HEADER_BYTES + RING_BYTES, prot=mmap.PROT_READ) as pages:
        return _tail(memoryview(bytes(pages)))


def _tail(view: memoryview) -> Tail:
    written, dropped = view[:16].cast("q")
    ring = bytes(view[HEADER_BYTES:])
    count = min(max(written, 0), limits.STDERR_BYTES)
    start, stop = (written - count) % RING_BYTES, written % RING_BYTES
    data = ring[start:stop] if start <= stop else ring[start:] + ring[:stop]
    return Tail(data if count else b"", written > count, max(dropped, 0))
