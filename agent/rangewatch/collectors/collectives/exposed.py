"""Communication that the training thread waited for in a step, from the records of its collectives.

What the collectives tell the step phases: communication that the training thread waited for.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from rangewatch.collectors.collectives.process_groups import Record
from rangewatch.collectors.collectives.recorder import CollectiveRecorder
from rangewatch.recording.events import OpenStep

Interval = tuple[int, int]


class ExposedOfStep:
    """Seconds of a step that are covered by blocking collectives, and by the ends of DDP's buckets.

    Asked at every change of phase, on the training thread: what has ended is added up once. (Going through all of them
    each time took 0.5 ms at 1,000 collectives a step.)
    """

    def __init__(self, recorder: CollectiveRecorder) -> None:
        self._recorder = recorder
        self._begin(-1)

    def seconds(self, step: int, bucket_sizes: Sequence[int]) -> float:
        """So far. NaN where a duration is unknown."""
        if step != self._step:
            self._begin(step)
        records = self._recorder.of_step(step, self._place)
        left = self._add_ended(records, bucket_sizes)
        open_records = [record for record in left if _counts(record, bucket_sizes)]
        if self._is_unknown or any(map(_is_unknown, open_records)):
            return math.nan
        intervals = _intervals([*self._part, *open_records], len(bucket_sizes))
        return _cover(self._covered_ns, self._until_ns, intervals)[0] / 1e9

    def _begin(self, step: int) -> None:
        self._step, self._place, self._is_unknown = step, 0, False
        self._covered_ns = self._until_ns = 0
        self._part: list[Record] = []
        """Of the buckets of one backward, those that have ended while others have not begun."""

    def _add_ended(self, records: Sequence[Record], bucket_sizes: Sequence[int]) -> Sequence[Record]:
        """Those that are left: from the first that has not ended, or that began while a backward's were not all there,
        since intervals are added in the order in which they begin."""
        for place, record in enumerate(records):
            if _counts(record, bucket_sizes):
                if record.is_open or (self._part and not record.is_async):
                    self._place += place
                    return records[place:]
                self._is_unknown = self._is_unknown or _is_unknown(record)
                if not self._is_unknown:
                    self._add(record, max(len(bucket_sizes), 1))
        self._place += len(records)
        return ()

    def _add(self, record: Record, bucket_count: int) -> None:
        self._part.append(record)
        if not record.is_async or len(self._part) == bucket_count:
            intervals = _intervals(self._part, bucket_count)
            self._covered_ns, self._until_ns = _cover(self._covered_ns, self._until_ns, intervals)
            self._part = []


def _counts(record: Record, bucket_sizes: Sequence[int]) -> bool:
    """What blocks another thread, as one that writes a checkpoint, does not block this one."""
    if record.is_async:
        return record.kind.name == "all_reduce" and record.bytes in bucket_sizes
    return record.thread == threading.get_ident()


def _is_unknown(record: Record) -> bool:
    has_ended = not record.is_open
    return (has_ended and math.isnan(record.duration_s)) or (record.group is not None and not record.group.has_futures)


def _intervals(records: Sequence[Record], bucket_count: int) -> list[Interval]:
    """When the thread waits: all of a call that blocks; of a backward's buckets, what comes after the last's call."""
    intervals = [(record.began_ns, _end_ns(record)) for record in records if not record.is_async]
    reduced = [record for record in records if record.is_async]
    count = max(bucket_count, 1)
    for first in range(0, len(reduced), count):
        part = reduced[first : first + count]
        intervals.append((max(each.began_ns for each in part), max(map(_end_ns, part))))
    return sorted(intervals)


def _end_ns(record: Record) -> int:
    if record.is_open:  # its caller has gone on, and the thread that says so has not had its turn yet
        return time.perf_counter_ns()
    return record.began_ns + int(record.duration_s * 1e9)


def _cover(covered_ns: int, until_ns: int, intervals: Sequence[Interval]) -> Interval:
    """Nanoseconds covered, and until when, with these intervals too, which begin in order."""
    for begin, end in intervals:
        covered_ns += max(end - max(begin, until_ns), 0)
        until_ns = max(until_ns, end)
    return covered_ns, until_ns


TIMED = ("hooks", "wrapped")
"""Timing sources that see each collective as it is called."""


class Collected(Protocol):
    """The collector of collectives."""

    timing_source: str

    def exposed_s(self, step: int) -> float:
        """Seconds of a step so far; NaN where that cannot be known."""


class ExposedSince:
    """A source of `PhaseClock`: what has come since it was asked last. Called by the training thread."""

    def __init__(self, collected: Collected, open_step: OpenStep) -> None:
        self._collected, self._open_step = collected, open_step
        self._of_step, self._taken_s = -1, 0.0

    def take_exposed_s(self) -> float:
        """Seconds since the last call, of the open step; NaN where it cannot be known."""
        step = self._open_step.number
        if step != self._of_step:
            self._of_step, self._taken_s = step, 0.0
        total_s = self._collected.exposed_s(step) if self._collected.timing_source in TIMED else math.nan
        if math.isnan(total_s):
            return math.nan
        new_s, self._taken_s = max(total_s - self._taken_s, 0.0), max(total_s, self._taken_s)
        return new_s
