"""torch's flight recorder, read in process: when NCCL's collectives ended, and how long they took where that is timed.

A dump holds the GIL, for some 10 ms with the default ring of 2,000 entries, so it is taken seldom: every 5 s where
nothing else tells of the end of a collective, and once when a hang is suspected.

`RecorderJoin` puts it beside the records of calls: when NCCL's collectives ended, and how long they took.
"""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from rangewatch.collectors.collectives.ops import RECORDED, Kind
from rangewatch.collectors.collectives.process_groups import ENDED, ISSUED, Group, Record, live_groups, members
from rangewatch.collectors.collectives.recorder import CollectiveRecorder

EVERY_S = 5.0
"""Least seconds between two dumps."""

_DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Byte": "uint8",
    "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64", "Bool": "bool",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
_BYTES = {
    "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Byte": 1, "Char": 1, "Short": 2, "Int": 4, "Long": 8, "Bool": 1,
    "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip
_FLOAT8_BYTES = 1


class Entry(NamedTuple):
    """One collective in the ring. `duration_s`: NaN where torch does not time (see TORCH_NCCL_ENABLE_TIMING)."""

    backend: str
    record_id: int
    group: str
    desc: str
    sequence: int
    kind: Kind
    dtype: str
    bytes: int
    enqueued_ns: int
    duration_s: float
    has_ended: bool
    is_p2p: bool


class FlightRecorder:
    """Reads what is new. All of it on the collectors' thread."""

    def __init__(self, module: Any = None) -> None:
        module = module or getattr(torch._C, "_distributed_c10d", None)
        self._dumps: dict[str, Callable[..., bytes]] = {
            name: getattr(module, function)
            for name, function in (("nccl", "_dump_nccl_trace"), ("cpu", "_dump_fr_trace"))
            if hasattr(module, function)
        }
        self._last: dict[str, int] = {}
        self._open: dict[str, set[int]] = {}
        self.overwritten = 0
        """Entries that were gone before they were read."""

    @property
    def is_there(self) -> bool:
        """Whether this torch has one. It may be off: TORCH_FR_BUFFER_SIZE=0 is the default before torch 2.11."""
        return bool(self._dumps)

    def read(self) -> list[Entry]:
        """Entries that are new, or were still running when they were read last."""
        entries: list[Entry] = []
        for name, dump in self._dumps.items():
            entries += self._news(name, _loaded(dump(True, False, False)))
        return entries

    def status(self) -> dict[str, dict[str, int]]:
        """Group name -> last enqueued, started and completed collective, -1 where unknown. It is a whole dump."""
        status: dict[str, dict[str, int]] = {}
        for dump in self._dumps.values():
            trace = _loaded(dump(True, False, False))
            of_groups = trace.get("pg_status") or {}
            # The status is by torch's number of a group, and only entries say which name has that: the last one made.
            for row in sorted(trace.get("entries") or (), key=lambda row: row["record_id"]):
                if str(row.get("pg_id")) in of_groups:
                    status[str(row["process_group"][0])] = of_groups[str(row["pg_id"])]
        return status

    def _news(self, name: str, trace: dict[str, Any]) -> list[Entry]:
        rows = sorted(trace.get("entries") or (), key=lambda row: row["record_id"])
        last, running = self._last.get(name, -1), self._open.setdefault(name, set())
        if not rows:
            return []
        if rows[-1]["record_id"] < last:  # the ring was reset, and counts anew
            last, self._open[name] = -1, set()
            running = self._open[name]
        if last >= 0:
            self.overwritten += max(rows[0]["record_id"] - last - 1, 0)
        new = [
            entry for row in rows if row["record_id"] > last or row["record_id"] in running if (entry := _entry(row))
        ]
        self._last[name] = rows[-1]["record_id"]
        self._open[name] = {entry.record_id for entry in new if not entry.has_ended}
        return new


def _loaded(dump: bytes) -> dict[str, Any]:
    return pickle.loads(dump)  # noqa: S301 - made a moment ago by torch in this process


def _entry(row: dict[str, Any]) -> Entry | None:
    backend, _, operation = str(row.get("profiling_name", "")).partition(":")
    kind = RECORDED.get(operation.split(" ")[0])
    if kind is None:
        return None
    name, desc = (*row.get("process_group", ()), "", "")[:2]
    is_p2p = bool(row.get("is_p2p"))
    duration_ms = row.get("duration_ms")
    dtype, size = _size(row, kind)
    return Entry(
        backend=backend,
        record_id=int(row["record_id"]),
        group=str(name),
        desc=str(desc),
        sequence=int(row.get("p2p_seq_id" if is_p2p else "collective_seq_id") or 0),
        kind=kind,
        dtype=dtype,
        bytes=size,
        enqueued_ns=int(row.get("time_created_ns") or 0),
        duration_s=math.nan if duration_ms is None else duration_ms / 1e3,
        has_ended=bool(row.get("retired")) or row.get("state") == "completed",
        is_p2p=is_p2p,
    )


def _size(row: dict[str, Any], kind: Kind) -> tuple[str, int]:
    sides = ("output", "input") if kind.whole == "output" else ("input", "output")
    for side in sides:
        shapes, dtypes = row.get(f"{side}_sizes") or (), row.get(f"{side}_dtypes") or ()
        if shapes:
            names = [*dtypes, *[dtypes[-1] if dtypes else ""] * (len(shapes) - len(dtypes))]
            total = sum(math.prod(shape) * _element(name) for shape, name in zip(shapes, names, strict=False))
            return _DTYPES.get(names[0], names[0].lower()), total
    return "", 0


def _element(dtype: str) -> int:
    return _BYTES.get(dtype, _FLOAT8_BYTES)


GROUPS = 1000
"""Groups of the flight recorder's names that are remembered where nothing else tells of them."""

OPEN = 20_000
"""Entries that had not ended when they were read, and are known again when they have: ten of torch's default rings."""


class RecorderJoin:
    """Matches entries with records by the group's name and the sequence, which the backend counts for both."""

    def __init__(self, recorder: CollectiveRecorder, flight: FlightRecorder | None = None) -> None:
        self._recorder, self.flight = recorder, flight or FlightRecorder()
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
        if not by_key or not self.flight.is_there or not self._is_due(now):
            return
        for entry in self.flight.read():
            if entry.has_ended and not entry.is_p2p:
                alike = by_key.get((entry.group, entry.sequence), ())  # several, where they are coalesced
                record = next((each for each in alike if each.is_open and _is_of(each, entry)), None)
                if record is not None:
                    self._note_end(record, entry)

    def records(self, step: int) -> list[Record]:
        """Records of the flight recorder alone, of the step that is open when it is read."""
        if not self._is_due(False):
            return []
        return [record for entry in self.flight.read() if (record := self._of(entry, step)) is not None]

    def status(self) -> dict[str, dict[str, int]]:
        """The flight recorder's account of each group."""
        return self.flight.status() if self.flight.is_there else {}

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
        self._recorder.close(record, ENDED, entry.duration_s)
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
