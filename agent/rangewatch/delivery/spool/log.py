"""A rank's own spool: batches at the end, taken from the front when the server has them, bounded in bytes on disk.

Used by the sender's thread alone. Written with pwrite and not through a mapping: on a full disk that is an error to
handle, where a mapped page would be SIGBUS for the training process. Every method may raise `OSError`.

While the server answers, the one small segment is written over and over: no file grows. The oldest segment's batches
are in memory, those of the others on disk only.

When it is full the oldest batches are dropped, a segment at a time, and counted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from rangewatch.core import limits
from rangewatch.delivery.spool import segment
from rangewatch.delivery.spool.folder import NEWEST, NEWEST_FILE, OPENING_PREFIX, newest_mark, write_opening
from rangewatch.delivery.spool.record import FREED, STATE_OFFSET, Encoded, StoredBatches, pack
from rangewatch.delivery.spool.segment import SegmentName

KEPT_BYTES = 256 << 10
"""A segment that is empty again keeps so much of its file: making it shorter after each batch would cost more."""


@dataclasses.dataclass(eq=False)
class _Segment:
    name: SegmentName
    size: int = 0
    records: int = 0
    batches: int = 0
    catalogues: set[str] = dataclasses.field(default_factory=set)


class DropCounts(Protocol):
    """Counts what was lost, by reason."""

    def add(self, reason: str, count: int = 1) -> None:
        """More were lost for `reason`."""


class Log:
    """The segments of `folder`, which is there and empty or holds what an earlier `Log` has left to nobody.

    `drops` counts what did not fit or cannot be read.
    """

    def __init__(self, folder: Path, max_bytes: int, drops: DropCounts) -> None:
        self.folder, self._drops = folder, drops
        self._segment_bytes = min(limits.SPOOL_SEGMENT_BYTES, max_bytes // limits.SPOOL_SEGMENTS)
        self._max_bytes = self._limit = max_bytes - self._segment_bytes  # the file of an empty one stays
        self._segments: deque[_Segment] = deque()
        self.head: deque[tuple[int, Encoded]] = deque()
        """The batches of the oldest segment, each with the offset of its record; empty where nothing waits."""
        self._tail: int | None = None
        self._openings: dict[str, int] = {}
        self._number = max((name.last for name in segment.names(folder)), default=-1) + 1
        self._batches = 0
        (folder / NEWEST_FILE).write_bytes(bytes(NEWEST.size))  # it is there before the disk is full
        self._newest: int | None = os.open(folder / NEWEST_FILE, os.O_WRONLY | os.O_CLOEXEC)

    def __len__(self) -> int:
        return self._batches

    @property
    def nbytes(self) -> int:
        """Bytes of its files, give or take the reuse of an empty segment."""
        return sum(each.size for each in self._segments) + sum(self._openings.values())

    def append(self, batch: Encoded, opening: Callable[[], bytes]) -> None:
        """Add at the end; `opening` encodes that of the batch's catalogue. Nothing is added when it raises."""
        self._make_room(len(batch.body))
        if batch.catalogue not in self._openings:
            self._openings[batch.catalogue] = write_opening(self.folder, batch.catalogue, opening())
        data = pack(batch)
        tail = self._segments[-1] if self._segments else None
        if tail is None or (self._batches and tail.size and tail.size + len(data) > self._segment_bytes):
            tail = self._begin_segment()
        assert self._tail is not None
        is_restarted = not self._batches  # over what has all been acknowledged
        if is_restarted:
            tail.size = tail.records = tail.batches = 0
            tail.catalogues = set()
        status = os.fstat(self._tail)
        if not status.st_nlink:
            raise OSError(errno.ESTALE, f"{self.folder} was deleted")
        try:
            if os.pwrite(self._tail, data, tail.size) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if is_restarted and status.st_size > max(KEPT_BYTES, len(data)):
                os.ftruncate(self._tail, len(data))
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._tail, tail.size)
            raise
        if len(self._segments) == 1:
            self.head.append((tail.size, batch))
        tail.size += len(data)
        tail.records += 1
        tail.batches += batch.batches
        tail.catalogues.add(batch.catalogue)
        self._batches += 1

    def remove_first(self) -> None:
        """The oldest has arrived, or never will."""
        offset, _ = self.head.popleft()
        self._batches -= 1
        segment_ = self._segments[0]
        segment_.records -= 1
        self._mark(segment_, offset)
        if not self.head:
            self._end_segment()

    def note_newest(self, sequence: int) -> None:
        """A sequence is used that is in no record. The disk may be full: a page that is there takes it all the same."""
        if self._newest is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._newest, newest_mark(sequence), 0)

    def close(self) -> None:
        """Close its files; what is in them stays."""
        _close(self._tail)
        _close(self._newest)
        self._tail = self._newest = None

    def _begin_segment(self) -> _Segment:
        name = SegmentName(self._number, self._number, 0)
        descriptor = os.open(self._path(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._number += 1
        before, self._tail = self._tail, descriptor
        self._segments.append(_Segment(name))
        _close(before)
        self._check_disk()
        return self._segments[-1]

    def _check_disk(self) -> None:
        """Half of what would be free without the spool stays free."""
        disk = os.statvfs(self.folder)
        self._limit = min(self._max_bytes, (self.nbytes + disk.f_bavail * disk.f_frsize) // 2)

    def _mark(self, segment_: _Segment, offset: int) -> None:
        """Note in the file that a record is done with. Where that fails it is sent once more, to no harm."""
        with contextlib.suppress(OSError):
            if segment_ is self._segments[-1] and self._tail is not None:
                os.pwrite(self._tail, bytes([FREED]), offset + STATE_OFFSET)
            elif self.head:  # the file of the last one goes
                descriptor = os.open(self._path(segment_.name), os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.pwrite(descriptor, bytes([FREED]), offset + STATE_OFFSET)
                finally:
                    os.close(descriptor)

    def _end_segment(self) -> None:
        """The first segment is empty. The last file stays: its newest record tells the newest sequence."""
        while not self.head and len(self._segments) > 1:
            self._unlink(self._segments.popleft())
            self._load()
        if not self.head:
            newest = next(reversed(self._openings), None)
            self._segments[0].catalogues = set() if newest is None else {newest}
        self._forget_openings()

    def _load(self) -> None:
        """Read the first segment into memory."""
        first = self._segments[0]
        held = self._held(first)
        self.head.extend((each.offset, each.batch) for each in held)
        self._count_lost("spool_damaged", first.batches - sum(each.batch.batches for each in held))
        self._batches -= first.records - len(held)
        first.records = len(held)

    def _held(self, segment_: _Segment) -> list[StoredBatches]:
        """Its batches that are not acknowledged. What cannot be read is lost."""
        try:
            return [each for each in segment.read(self._path(segment_.name)).records if each.is_held]
        except OSError:
            return []

    def _make_room(self, nbytes: int) -> None:
        while self.nbytes + nbytes > self._limit and self._drop_oldest():
            pass

    def _drop_oldest(self) -> bool:
        """Whether there was any: the first segment may be on its way, and the last one is being written."""
        open_ones = list(self._segments)[1:-1]
        if not open_ones:
            return False
        oldest = open_ones[0]
        self._segments.remove(oldest)
        self._batches -= oldest.records
        self._unlink(oldest)
        self._count_lost("spool_full", oldest.batches)
        self._forget_openings()
        return True

    def _forget_openings(self) -> None:
        needed = set().union(*(each.catalogues for each in self._segments))
        for digest in [each for each in self._openings if each not in needed]:
            del self._openings[digest]
            with contextlib.suppress(OSError):
                (self.folder / (OPENING_PREFIX + digest)).unlink()

    def _count_lost(self, reason: str, batches: int) -> None:
        if batches > 0:
            self._drops.add(reason, batches)

    def _path(self, name: SegmentName) -> Path:
        return self.folder / str(name)

    def _unlink(self, each: _Segment) -> None:
        with contextlib.suppress(OSError):
            self._path(each.name).unlink()


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        with contextlib.suppress(OSError):
            os.close(descriptor)
