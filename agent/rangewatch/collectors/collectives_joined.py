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


class RecorderJoin:
    """Matches entries with records by the group's name and the sequence, which the backend counts for both."""

    def __init__(self, ledger: Ledger, recorder: FlightRecorder | None = None) -> None:
        self._ledger, self.recorder = ledger, recorder or FlightRecorder()
        self.untimed = 0
        """NCCL's collectives that have ended, without torch saying how long they took."""
        self._due_s = 0.0
        self._groups: dict[tuple[str, str], Group] = {}
        self._open: dict[tuple[str, int], Record] = {}

    def close(self, records: Iterable[Record], *, now: bool = False) -> None:
        """End those of `records` that the flight recorder says have ended. A dump every `EVERY_S`, or `now`."""
        asked = [each for each in records if each.is_open and each.group is not None and not each.group.has_futures]
        if not asked or not self.recorder.is_there or not self._is_due(now):
            return
        by_key = {(each.group.name, each.sequence): each for each in asked if each.group is not None}
        for entry in self.recorder.read():
            record = by_key.get((entry.group, entry.sequence))
            if record is not None and entry.has_ended and not entry.is_p2p and entry.kind.name == record.kind.name:
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
        key = (entry.group, entry.sequence)
        known = self._open.pop(key, None)
        if known is not None:
            if entry.has_ended:
                self._note_end(known, entry)
            else:
                self._open[key] = known
            return None
        record = self._new(entry, step)
        if not entry.has_ended and not entry.is_p2p and len(self._open) < GROUPS:
            self._open[key] = record
        return record

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
