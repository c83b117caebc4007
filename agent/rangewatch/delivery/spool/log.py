"""A rank's own spool: batches at the end, taken from the front when the server has them, bounded in bytes on disk.

Used by the sender's thread alone. Written with pwrite and not through a mapping: on a full disk that is an error to
handle, where a mapped page would be SIGBUS for the training process. Every method may raise `OSError`.

While the server answers, the one small segment is written over and over: no file grows. The oldest segment's batches
are in memory, those of the others on disk only.

A full spool is made smaller without losing a spike: neighbouring batches become one, with half the rows of steps.

Rows of tensors merge by the statistics' own rules, as `ship_every` does. Series, events and samples stay as they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch import statistics, wire
from rangewatch.core import limits
from rangewatch.delivery.spool import segment
from rangewatch.delivery.spool.folder import NEWEST, NEWEST_FILE, OPENING_PREFIX, newest_mark, write_opening
from rangewatch.delivery.spool.record import FREED, STATE_OFFSET, Encoded, StoredBatches, pack
from rangewatch.delivery.spool.segment import SegmentName
from rangewatch.statistics import exponents
from rangewatch.wire import messages
from rangewatch.wire.records import Batch, Event, RangeRows, Samples, SeriesRows

EVENT = "spool_merged"
_STATISTICS = {each.name: each for each in (*statistics.ALL, *exponents.ALL)}
_RULES = {"max": np.maximum, "min": np.minimum, "sum": np.add}


class _Read(NamedTuple):
    encoded: Encoded
    batch: Batch


def halved(batches: Iterable[Encoded], every: int) -> Iterator[Encoded]:
    """Each two neighbours as one, with one row for the steps of the same `step // every`.

    Where two would be too much for the wire, or have one row each that stay two, each by itself; and where nothing can
    be done, as it is. One that has one row waits for the neighbour that shares its group: a slow training has one step
    a batch, and pairs that lie across two groups would become no smaller at any time.
    """
    left: _Read | None = None
    for each in batches:
        right = _read(each)
        both = _pair(left, right, every)
        if both is not None:
            yield both
            left = None
            continue
        if left is not None:
            yield _one([left], every) or left.encoded
        if right is None:
            yield each
        left = right
    if left is not None:
        yield _one([left], every) or left.encoded


def merged(batches: Sequence[Encoded], every: int) -> Encoded | None:
    """One batch instead of several that follow one another, with one row for the steps of the same `step // every`.

    None where the wire would not take it, or they cannot be merged. It has the sequence and the catalogue of the last:
    a catalogue only grows, and `settled` tells the server that the sequences before it will not come.

    Steps with NaN or Inf, those in `whole`, and those that would be merged with either, keep their rows.
    """
    found = [read for each in batches if (read := _read(each)) is not None]
    return _one(found, every) if len(found) == len(batches) else None


def _read(encoded: Encoded) -> _Read | None:
    try:
        message = wire.decode(encoded.body)
    except wire.WireError:
        return None
    return _Read(encoded, message) if isinstance(message, Batch) else None


def _pair(left: _Read | None, right: _Read | None, every: int) -> Encoded | None:
    if left is None or right is None:
        return None
    steps = [each.batch.ranges.steps for each in (left, right) if each.batch.ranges is not None]
    are_apart = [len(each) for each in steps] == [1, 1] and steps[0][0] // every != steps[1][0] // every
    return None if are_apart else _one([left, right], every)


def _one(found: list[_Read], every: int) -> Encoded | None:
    batches = [each.encoded for each in found]
    whole = tuple(sorted(set(chain.from_iterable(each.whole for each in batches))))
    if not (result := _merged([each.batch for each in found], every, whole)):
        return None
    body = wire.encode(result)
    try:
        wire.decode(body)  # as the server will: what it would refuse for good is better left apart
    except wire.WireError:
        return None
    last = batches[-1]
    return Encoded(body, last.tensor_count, last.catalogue, last.sequence, whole, sum(each.batches for each in batches))


def _merged(batches: list[Batch], every: int, whole: tuple[int, ...]) -> Batch | None:
    rows = [each.ranges for each in batches if each.ranges is not None]
    joined = _joined_rows(rows) if rows else None
    series = _joined_series(each.series for each in batches)
    samples = _joined_samples(chain.from_iterable(each.samples for each in batches))
    if (rows and joined is None) or not _fits(series, samples):
        return None
    events = [event for each in batches for event in each.events if event.kind != EVENT]
    ranges = None if joined is None else _halved(joined, every, whole)
    if ranges is not None and joined is not None and (len(ranges.steps) < len(joined.steps) or _was_merged(batches)):
        events.append(_event(ranges, every, batches))
    return msgspec.structs.replace(
        batches[-1], ranges=ranges, series=series, events=tuple(events), samples=samples
    )  # fmt: skip


def _joined_rows(rows: list[RangeRows]) -> RangeRows | None:
    """All rows in one table: what was not observed in one holds the identities. None where that is too much."""
    steps = np.concatenate([each.steps for each in rows])
    tensors = np.unique(np.concatenate([each.tensors for each in rows]))
    names = dict.fromkeys(chain.from_iterable(each.columns for each in rows))
    is_known = all(name in _STATISTICS for name in names)
    values = len(steps) * len(tensors) * len(names)
    if not is_known or values > limits.SPOOL_MERGED_VALUES or not bool((np.diff(steps) > 0).all()):
        return None
    shape = len(tensors), len(steps)
    columns = {name: np.full(shape, _STATISTICS[name].identity) for name in names}
    stop = 0
    for each in rows:
        start, stop = stop, stop + len(each.steps)
        places = np.searchsorted(tensors, each.tensors)
        for name, values_of in each.columns.items():
            columns[name][places, start:stop] = values_of
    return RangeRows(steps, tensors, columns)


def _halved(rows: RangeRows, every: int, whole: tuple[int, ...]) -> RangeRows:
    if len(rows.steps) < 2:
        return rows
    starts = _starts(rows, every, whole)
    columns = {
        name: _RULES[_STATISTICS[name].merge].reduceat(values, starts, axis=1) for name, values in rows.columns.items()
    }
    return RangeRows(rows.steps[np.append(starts[1:], len(rows.steps)) - 1], rows.tensors, columns)


def _starts(rows: RangeRows, every: int, whole: tuple[int, ...]) -> NDArray[np.intp]:
    """Where each new row begins."""
    group = rows.steps // every
    is_kept = np.isin(rows.steps, whole)
    for name in ("nan_count", "inf_count"):
        if name in rows.columns:
            is_kept |= rows.columns[name].any(axis=0)
    is_alone = np.isin(group, np.unique(group[is_kept]))
    return np.flatnonzero(np.append(True, group[1:] != group[:-1]) | is_alone)


def _joined_series(parts: Iterable[tuple[SeriesRows, ...]]) -> tuple[SeriesRows, ...]:
    found: dict[str, dict[int, float]] = {}
    for rows in chain.from_iterable(parts):
        found.setdefault(rows.name, {}).update(zip(rows.steps.tolist(), rows.values.tolist(), strict=True))
    return tuple(
        SeriesRows(name, np.array(sorted(values), np.int64), np.array([values[step] for step in sorted(values)]))
        for name, values in found.items()
    )


def _joined_samples(tables: Iterable[Samples]) -> tuple[Samples, ...]:
    """Tables that continue one another as one: of the same source, key, columns and facts, and later."""
    found: list[Samples] = []
    newest: dict[tuple[str, str], int] = {}
    for each in tables:
        position = newest.get((each.source, each.key))
        if position is not None and _continues(found[position], each):
            found[position] = _appended(found[position], each)
        else:
            newest[each.source, each.key] = len(found)
            found.append(each)
    return tuple(found)


def _continues(before: Samples, after: Samples) -> bool:
    if before.about != after.about or list(before.columns) != list(after.columns):
        return False
    rows = len(before.times_ns) + len(after.times_ns)
    return rows <= messages.MAX_SAMPLE_ROWS and bool(before.times_ns[-1:] <= after.times_ns[:1])


def _appended(before: Samples, after: Samples) -> Samples:
    columns: dict[str, Any] = {
        name: np.concatenate([values, after.columns[name]]) for name, values in before.columns.items()
    }
    times_ns = np.concatenate([before.times_ns, after.times_ns])
    return msgspec.structs.replace(before, times_ns=times_ns, columns=columns)


def _fits(series: tuple[SeriesRows, ...], samples: tuple[Samples, ...]) -> bool:
    if len(series) > messages.MAX_SERIES or len(samples) > messages.MAX_SAMPLES:
        return False
    return all(len(rows.steps) <= messages.MAX_STEPS for rows in series)


def _was_merged(batches: list[Batch]) -> bool:
    return any(event.kind == EVENT for each in batches for event in each.events)


def _event(ranges: RangeRows, every: int, batches: list[Batch]) -> Event:
    """Says in the run itself which steps have shared rows: those between them are no gap."""
    earlier = [event for each in batches for event in each.events if event.kind == EVENT]
    first = min([int(ranges.steps[0]) // every * every, *(event.data["first_step"] for event in earlier)])
    last = int(ranges.steps[-1])
    message = f"steps {first} to {last} have one row for up to {every} steps: the server was away and the spool full"
    data = {"first_step": first, "last_step": last, "steps_a_row": every}
    return Event(EVENT, time.time_ns(), last, message, data)


KEPT_BYTES = 256 << 10
"""A segment that is empty again keeps so much of its file: making it shorter after each batch would cost more."""

LAST_LEVEL = 30


@dataclasses.dataclass(eq=False)
class _Segment:
    name: SegmentName
    size: int = 0
    records: int = 0
    batches: int = 0
    catalogues: set[str] = dataclasses.field(default_factory=set)
    is_spent: bool = False
    """Merging makes it no smaller."""

    def add(self, batch: Encoded, nbytes: int) -> None:
        self.size += nbytes
        self.records += 1
        self.batches += batch.batches
        self.catalogues.add(batch.catalogue)


class Log:
    """The segments of `folder`, which is there and empty or holds what an earlier `Log` has left to nobody.

    `lost(reason, batches)` is told of what did not fit or cannot be read. `ship_every`: steps of a row as it comes.
    """

    def __init__(self, folder: Path, max_bytes: int, ship_every: int, lost: Callable[[str, int], None]) -> None:
        self.folder, self._ship_every, self._lost = folder, ship_every, lost
        self._segment_bytes = min(limits.SPOOL_SEGMENT_BYTES, max_bytes // limits.SPOOL_SEGMENTS)
        self._max_bytes = self._limit = max_bytes - 2 * self._segment_bytes  # room for what merging writes
        self._segments: deque[_Segment] = deque()
        self._head: deque[tuple[int, Encoded]] = deque()
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
        self._write(tail, data)
        tail.add(batch, len(data))
        if len(self._segments) == 1:
            self._head.append((tail.size - len(data), batch))
        self._batches += 1

    def first(self) -> Encoded | None:
        """The oldest, which stays; None when there is none."""
        return self._head[0][1] if self._head else None

    def remove_first(self) -> None:
        """The oldest has arrived, or never will."""
        offset, _ = self._head.popleft()
        self._batches -= 1
        segment_ = self._segments[0]
        segment_.records -= 1
        self._mark(segment_, offset)
        if not self._head:
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
        self._look_at_disk()
        return self._segments[-1]

    def _look_at_disk(self) -> None:
        """Half of what would be free without the spool stays free."""
        found = os.statvfs(self.folder)
        self._limit = min(self._max_bytes, (self.nbytes + found.f_bavail * found.f_frsize) // 2)

    def _write(self, tail: _Segment, data: bytes) -> None:
        assert self._tail is not None
        is_restarted = not self._batches  # over what has all been acknowledged
        if is_restarted:
            tail.size = tail.records = tail.batches = 0
            tail.catalogues = set()
        found = os.fstat(self._tail)
        if not found.st_nlink:
            raise OSError(errno.ESTALE, f"{self.folder} was deleted")
        try:
            if os.pwrite(self._tail, data, tail.size) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if is_restarted and found.st_size > max(KEPT_BYTES, len(data)):
                os.ftruncate(self._tail, len(data))
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._tail, tail.size)
            raise

    def _mark(self, segment_: _Segment, offset: int) -> None:
        """Note in the file that a record is done with. Where that fails it is sent once more, to no harm."""
        with contextlib.suppress(OSError):
            if segment_ is self._segments[-1] and self._tail is not None:
                os.pwrite(self._tail, bytes([FREED]), offset + STATE_OFFSET)
            elif self._head:  # the file of the last one goes
                descriptor = os.open(self._path(segment_.name), os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.pwrite(descriptor, bytes([FREED]), offset + STATE_OFFSET)
                finally:
                    os.close(descriptor)

    def _end_segment(self) -> None:
        """The first segment is empty. The last file stays: its newest record tells the newest sequence."""
        while not self._head and len(self._segments) > 1:
            self._unlink(self._segments.popleft())
            self._load()
        if not self._head:
            newest = next(reversed(self._openings), None)
            self._segments[0].catalogues = set() if newest is None else {newest}
        self._forget_openings()

    def _load(self) -> None:
        """Read the first segment into memory."""
        first = self._segments[0]
        found = self._held(first)
        self._head.extend((each.offset, each.batch) for each in found)
        self._count_lost("spool_damaged", first.batches - sum(each.batch.batches for each in found))
        self._batches -= first.records - len(found)
        first.records = len(found)

    def _held(self, segment_: _Segment) -> list[StoredBatches]:
        """Its batches that are not acknowledged. What cannot be read is lost."""
        try:
            return [each for each in segment.read(self._path(segment_.name)) if each.is_held]
        except OSError:
            return []

    def _make_room(self, nbytes: int) -> None:
        while self.nbytes + nbytes > self._limit and (self._merge_oldest() or self._drop_oldest()):
            pass

    def _merge_oldest(self) -> bool:
        """Merge the segment that has been merged the least, the oldest such; whether there was any.

        The first segment may be on its way, and the last one is being written. With its neighbour when both are small,
        so that neither their number nor their size grows: the largest is what has to be dropped at once.
        """
        open_ones = list(self._segments)[1:-1]
        candidates = [each for each in open_ones if not each.is_spent]
        if not candidates:
            return False
        chosen = min(candidates, key=lambda each: each.name.level)
        after = open_ones[open_ones.index(chosen) + 1 :][:1]
        is_pair = bool(after) and after[0] in candidates and after[0].name.level == chosen.name.level
        is_small = is_pair and chosen.size + after[0].size <= self._segment_bytes
        self._merge([chosen, *after] if is_small else [chosen])
        return True

    def _merge(self, old: list[_Segment]) -> None:
        level = old[0].name.level + 1
        new = _Segment(SegmentName(old[0].name.first, old[-1].name.last, level))
        every = self._ship_every << level

        def pieces() -> Iterator[bytes]:
            for batch in halved((each.batch for part in old for each in self._held(part)), every):
                data = pack(batch)
                new.add(batch, len(data))
                yield data

        segment.write_whole(self.folder, str(new.name), pieces())
        before = sum(each.size for each in old)
        new.is_spent = new.size > 0.9 * before or level >= LAST_LEVEL
        self._count_lost("spool_damaged", sum(each.batches for each in old) - new.batches)
        self._batches += new.records - sum(each.records for each in old)
        self._segments.insert(self._segments.index(old[0]), new)
        for each in old if new.records else [*old, new]:
            self._segments.remove(each)
            self._unlink(each)
        self._forget_openings()

    def _drop_oldest(self) -> bool:
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
            self._lost(reason, batches)

    def _path(self, name: SegmentName) -> Path:
        return self.folder / str(name)

    def _unlink(self, each: _Segment) -> None:
        with contextlib.suppress(OSError):
            self._path(each.name).unlink()


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        with contextlib.suppress(OSError):
            os.close(descriptor)
