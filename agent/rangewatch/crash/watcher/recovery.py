"""Reads what a dead process left in its memory (`crash.memory`): the steps that are in no spool, its events,
where it was.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.crash.memory import anonymous_file, layout
from rangewatch.crash.memory.layout import BLOCK, CAPACITY, OFFSET, SERIES, SLOTS, STEPS
from rangewatch.crash.memory.stored_steps import copied, views
from rangewatch.recording.rows import mirror
from rangewatch.recording.rows.step_buffer import IDENTITIES, POSITIONS, Block
from rangewatch.statistics import sparse
from rangewatch.wire.records import Catalogue, Event, TensorEntry

_IDENTITIES = np.array(list(IDENTITIES.values()))


class Collective(NamedTuple):
    """Of one process group: its last collective called and the last that ended, None where nobody tells."""

    group: str
    op: str
    enqueued: int
    completed: int | None
    ranks: tuple[int, ...]


class Position(NamedTuple):
    """Where the process was. `tensor`: the number of the tensor last recorded in the open step, None for none.

    `calls`: how often each tensor was read in the step before, (tensors,) float64; empty where that is not known.
    """

    step: int
    phase: str
    closed: int
    tensor: int | None
    calls: NDArray[np.float64]
    collectives: tuple[Collective, ...]


class Names(NamedTuple):
    """What the numbers stand for."""

    tensors: tuple[TensorEntry, ...]
    series: dict[int, str]
    ops: dict[int, str]
    groups: dict[int, dict[str, Any]]
    histograms: bool

    def catalogue(self) -> Catalogue:
        """As the rank would have sent it."""
        return Catalogue(sparse.of_catalogue(histograms=self.histograms), self.tensors)


NO_NAMES = Names((), {}, {}, {}, histograms=False)


class CrashRecord:
    """`descriptors`: of the steps, the names and the events. Raises `ValueError` for what is no such memory."""

    def __init__(self, descriptors: list[int]) -> None:
        self._descriptors = descriptors
        steps = descriptors[0]
        size = os.fstat(steps).st_size
        if size < layout.BASE_BYTES:
            raise ValueError("the memory is too short")
        self._bytes = mmap.mmap(steps, size, prot=mmap.PROT_READ)
        self._cells = memoryview(self._bytes)[: layout.HEADER_BYTES].cast("q")
        if self._cells[layout.SIGNATURE] != layout.MAGIC:
            raise ValueError("the memory is of another version, or was not written yet")
        self.names = read_names(descriptors[1])

    @property
    def closed(self) -> int:
        """How the agent ended: `layout.OPEN` when it did not."""
        return self._cells[layout.CLOSED]

    @property
    def next_sequence(self) -> int:
        """One more than any sequence that the rank has used, as far as it wrote that down."""
        return self._cells[layout.NEXT_SEQUENCE]

    def blocks(self, next_sequence: int) -> list[Block]:
        """Closed steps that are in no batch below `next_sequence` (the spool's), a block each, in order."""
        released, _ = self._released(next_sequence)
        recovered: dict[int, Block] = {}
        for area in self._areas():
            cell = layout.area_at(area)
            number, steps = self._cells[cell + BLOCK], self._cells[cell + STEPS]
            # An area that grows is copied to another one: for a moment there are two of a block, the same.
            if number > released and (steps or self._cells[cell + SERIES]) and number not in recovered:
                recovered[number] = self._block(area)
        return [recovered[number] for number in sorted(recovered)]

    def events(self, next_sequence: int) -> tuple[Event, ...]:
        """Events that are in no batch below `next_sequence`."""
        _, released = self._released(next_sequence)
        recovered = []
        for record in anonymous_file.records(self._descriptors[2]):
            numbered = _decoded(record, tuple[int, Event] | None)
            if numbered is not None and numbered[0] > released:
                recovered.append(numbered[1])
        return tuple(recovered)

    def position(self) -> Position:
        """Where the process was when it ended."""
        cells = self._cells
        tensor, phase = cells[mirror.TENSOR], cells[mirror.PHASE]
        return Position(
            cells[mirror.STEP],
            mirror.PHASE_NAMES[phase] if 0 <= phase < len(mirror.PHASE_NAMES) else "",
            cells[layout.CLOSED],
            tensor if 0 <= tensor < len(self.names.tensors) else None,
            self._calls_before(cells[mirror.STEP]),
            tuple(self._collectives()),
        )

    def _released(self, next_sequence: int) -> tuple[int, int]:
        """The last block and event in the spool. It may be there though the process did not come to saying so."""
        cells = self._cells
        block, events = cells[layout.RELEASED_BLOCK], cells[layout.RELEASED_EVENTS]
        if 0 <= cells[layout.SENDING] < next_sequence:
            block = max(block, cells[layout.SENDING_BLOCK])
            events = max(events, cells[layout.SENDING_EVENTS])
        return block, events

    def _areas(self) -> list[int]:
        return [area for area in range(layout.AREAS) if self._cells[layout.area_at(area) + BLOCK] > 0]

    def _rows(self, area: int) -> tuple[Any, Any]:
        """Meta cells and rows of the closed steps of an area."""
        cell = layout.area_at(area)
        count, slots = self._cells[cell + STEPS], self._cells[cell + SLOTS]
        capacity, offset = self._cells[cell + CAPACITY], self._cells[cell + OFFSET]
        if not 0 < count <= slots or offset + layout.rows_bytes(slots, capacity) > len(self._bytes):
            return np.zeros((0, layout.META_CELLS), np.int64), np.zeros((0, layout.STATISTICS, 0))
        end = offset + layout.rows_bytes(slots, capacity)
        meta, values = views(memoryview(self._bytes)[offset:end], slots, capacity)
        return meta[:count], values[:count]

    def _block(self, area: int) -> Block:
        meta, values = self._rows(area)
        tensors = min(len(self.names.tensors), values.shape[2])
        rows = copied(meta, values, tensors, _IDENTITIES)
        _forget_what_a_device_holds(rows)
        traced = frozenset(meta[meta[:, 1] != 0, 0].tolist())
        return Block(meta[:, 0].copy(), rows, self._series(area), traced)

    def _series(self, area: int) -> dict[str, dict[int, float]]:
        at, count = layout.series_at(area), self._cells[layout.area_at(area) + SERIES]
        series: dict[str, dict[int, float]] = {}
        data = self._bytes[at : at + min(count, layout.SERIES_RECORDS) * layout.SERIES_RECORD.size]
        for number, step, value in layout.SERIES_RECORD.iter_unpack(data):
            name = self.names.series.get(int(number))
            if name is not None:
                series.setdefault(name, {})[int(step)] = value
        return series

    def _calls_before(self, step: int) -> NDArray[np.float64]:
        """Of the last closed step, which may be in the spool: its row is still there until another needs the room."""
        for area in self._areas():
            meta, values = self._rows(area)
            if len(meta) and meta[-1, 0] == step - 1:
                return values[-1, POSITIONS["call_count"], : meta[-1, 2]].copy()
        return np.zeros(0)

    def _collectives(self) -> list[Collective]:
        collectives = []
        for place, about in sorted(self.names.groups.items()):
            at = layout.GROUPS_AT + place * layout.GROUP_CELLS
            enqueued, completed = self._cells[at + layout.ENQUEUED], self._cells[at + layout.COMPLETED]
            if enqueued:
                known = completed if self._cells[at + layout.KNOWS_ENDS] else None
                name = str(about.get("desc") or about.get("name") or "")
                op = self.names.ops.get(self._cells[at + layout.OP], "collective")
                collectives.append(Collective(name, op, enqueued, known, tuple(about.get("ranks") or ())))
        return collectives


def read_names(descriptor: int) -> Names:
    """What the log of names holds, as far as it was written."""
    tensors: list[TensorEntry] = []
    numbered: dict[str, dict[int, Any]] = {"series": {}, "op": {}, "group": {}}
    histograms = False
    for record in anonymous_file.records(descriptor):
        kind, value = _decoded(record, tuple[str, Any] | None) or ("", None)
        if kind == "tensor":
            number, entry = msgspec.convert(value, tuple[int, TensorEntry])
            if number != len(tensors):
                break  # one is missing: no number after it would be right
            tensors.append(entry)
        elif kind in numbered and isinstance(value, list):
            numbered[kind][int(value[0])] = value[1]
        elif kind == "histograms":
            histograms = bool(value)
    return Names(tuple(tensors), numbered["series"], numbered["op"], numbered["group"], histograms)


def _decoded(record: bytes, kind: Any) -> Any:
    try:
        return msgspec.msgpack.decode(record, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _forget_what_a_device_holds(rows: NDArray[np.float64]) -> None:
    """Cells that were read on an accelerator whose values are gone: not observed, rather than zero.

    A full set counts each element as NaN, Inf, zero, or in the two magnitudes. Where it counts none, it has not come.
    """
    seen = rows[POSITIONS["full_numel"]] > 0
    for name in ("amax", "zero_count", "nan_count", "inf_count"):
        seen &= rows[POSITIONS[name]] == 0
    seen &= rows[POSITIONS["amin"]] == np.inf
    rows[:, seen] = _IDENTITIES[:, np.newaxis]
