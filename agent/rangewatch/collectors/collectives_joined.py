"""The flight recorder and the ledger together: when NCCL's collectives ended, and how long they took."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence

from rangewatch.collectors.collectives_ledger import ENDED, ISSUED, Ledger, Record
from rangewatch.collectors.flight_recorder import EVERY_S, Entry, FlightRecorder
from rangewatch.collectors.process_groups import Group, live_groups, members

GROUPS = 1000
"""Groups of the flight recorder's names that are remembered where nothing else tells of them."""

OPEN = 20_000
"""Entries that had not ended when they were read, and are known again when they have: ten of torch's default rings."""


class RecorderJoin:
    """Matches entries with records by the group's name and the sequence, which the backend counts for both."""

    def __init__(self, ledger: Ledger, recorder: FlightRecorder | None = None) -> None:
        self._ledger, self.recorder = ledger, recorder or FlightRecorder()
        self.untimed = 0
        """NCCL's collectives that have ended, without torch saying how long they took."""
        self._due_s = 0.0
        self._groups: dict[tuple[str, str], Group] = {}
        self._open: dict[tuple[str, int], Record] = {}
        """By the recorder's own number: a send may have the sequence of a collective."""

    def close(self, records: Iterable[Record], *, now: bool = False) -> None:
        """End those of `records` that the flight recorder says have ended. A dump every `EVERY_S`, or `now`."""
        by_key: dict[tuple[str, int], list[Record]] = {}
        for each in records:
            if _is_asked(each, now) and each.group is not None:
                by_key.setdefault((each.group.name, each.sequence), []).append(each)
        if not by_key or not self.recorder.is_there or not self._is_due(now):
            return
        for entry in self.recorder.read():
            if entry.has_ended and not entry.is_p2p:
                alike = by_key.get((entry.group, entry.sequence), ())  # several, where they are coalesced
                record = next((each for each in alike if each.is_open and _is_of(each, entry)), None)
                if record is not None:
                    self._note_end(record, entry)

    def records(self, step: int) -> list[Record]:
        """Records of the flight recorder alone, of the step that is open when it is read."""
        if not self._is_due(False):
            return []
        return [record for entry in self.recorder.read() if (record := self._of(entry, step)) is not None]

    def status(self) -> dict[str, dict[str, int]]:
        """The flight recorder's account of each group."""
        return self.recorder.status() if self.recorder.is_there else {}

    def _is_due(self, now: bool) -> bool:
        now_s = time.monotonic()
        if not now and now_s < self._due_s:
            return False
        self._due_s = now_s + EVERY_S
        return True

    def _of(self, entry: Entry, step: int) -> Record | None:
        key = (entry.backend, entry.record_id)
        known = self._open.pop(key, None)
        is_known = known is not None and known.enqueued_ns == entry.enqueued_ns  # a ring that was reset counts anew
        record = known if known is not None and is_known else self._new(entry, step)
        if not entry.has_ended:
            if len(self._open) >= OPEN:
                self._open.pop(next(iter(self._open)))
            self._open[key] = record
        elif is_known:
            self._note_end(record, entry)
        return None if is_known else record

    def _new(self, entry: Entry, step: int) -> Record:
        record, group = Record(), self._group(entry)
        record.group, record.kind, record.step, record.state = group, entry.kind, step, ISSUED
        record.sequence, record.bytes, record.dtype = entry.sequence, entry.bytes, entry.dtype
        record.enqueued_ns = entry.enqueued_ns
        record.began_ns = time.perf_counter_ns() - max(time.time_ns() - entry.enqueued_ns, 0)
        if not entry.is_p2p:
            group.enqueued = max(group.enqueued, entry.sequence)
        if entry.has_ended:
            self._note_end(record, entry)
        return record

    def _note_end(self, record: Record, entry: Entry) -> None:
        self._ledger.close(record, ENDED, entry.duration_s)
        self.untimed += entry.backend == "nccl" and math.isnan(entry.duration_s)
        if record.group is not None:
            record.group.knows_ends = True

    def _group(self, entry: Entry) -> Group:
        key = (entry.backend, entry.group)
        if key not in self._groups:
            if len(self._groups) >= GROUPS:
                self._groups.pop(next(iter(self._groups)))
            ranks: Sequence[int] = next((members(each) for each in live_groups() if each.group_name == entry.group), ())
            device = "cpu" if entry.backend == "gloo" else "cuda"
            self._groups[key] = group = Group(entry.group, ranks, entry.desc, device, entry.backend, 0)
            group.has_futures = False
        return self._groups[key]


def _is_asked(record: Record, now: bool) -> bool:
    """Whether nothing else tells of its end. Of gloo's reduce_scatter only a hang asks: a dump holds the GIL."""
    group = record.group
    return record.is_open and group is not None and (not group.has_futures or (now and record.kind in group.silent))


def _is_of(record: Record, entry: Entry) -> bool:
    """Whether it is the same operation. gloo's reduce_scatter is an all_reduce to the recorder."""
    is_silent = record.group is not None and record.kind in record.group.silent
    return is_silent or record.kind.name == entry.kind.name
