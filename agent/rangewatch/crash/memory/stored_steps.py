"""The rows of closed steps where the watcher can read them: a few areas, one block of steps in each.

The training thread fills one area. `next_block` gives what is in it to the sender and goes on in another; an area is
free again when its block is in the spool. So a closed step is in an area, in the spool, or in both; but for those
that a full disk keeps in memory, and the oldest of more blocks than there are areas, which are on their way to it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np

from rangewatch.crash.memory import anonymous_file, layout
from rangewatch.crash.memory.anonymous_file import Memory
from rangewatch.crash.memory.layout import BLOCK, CAPACITY, META_CELLS, OFFSET, SERIES, SLOTS, STATISTICS, STEPS
from rangewatch.recording.rows.mirror import StepStore
from rangewatch.wire.records import FloatArray


class _Rows(NamedTuple):
    pages: anonymous_file.Pages
    meta: Any
    """(slots, META_CELLS) int64"""
    values: FloatArray
    """(slots, statistics, capacity) float64"""


class MemoryListener(Protocol):
    """Who has to know that a process goes on without memory that outlives it."""

    def steps_refused(self, why: str) -> None:
        """Called once, by the training thread: the kernel gives no more of it."""


class StoredSteps(StepStore):
    """The training thread calls everything but `sending` and `sent`, which are the sender's."""

    def __init__(self, shared: Memory, listener: MemoryListener | None = None) -> None:
        self.memory, self._listener = shared, listener
        self.base, _ = shared.add(layout.BASE_BYTES)
        self.cells = memoryview(self.base).cast("q")
        """The header's cells, see `layout`; most of them say where the process is."""
        self._rows: list[_Rows | None] = [None] * layout.AREAS
        self._area = 0
        self.block = 1
        """The number of the block that is being filled."""
        self._cell = layout.area_at(0)
        self._count = 0
        self._series_count = 0
        self._series_at = layout.series_at(0)
        self.cells[self._cell + BLOCK] = self.block
        self.cells[layout.SENDING] = -1

    @property
    def slots(self) -> int:
        """Steps that the area being filled has room for; 0 before the first."""
        rows = self._rows[self._area]
        return 0 if rows is None else len(rows.values)

    @property
    def capacity(self) -> int:
        """Tensors that it has room for."""
        rows = self._rows[self._area]
        return 0 if rows is None else rows.values.shape[2]

    def reserve(self, slots: int, capacity: int) -> None:
        """Room in the area being filled; the steps in it stay."""
        was = self._rows[self._area]
        if not self._count:
            self._allocate(self._area, slots, capacity)
            return
        # Nobody may see half of it: filled in another area, which then stands for the same block.
        assert was is not None
        before, before_cell, count = self._area, self._cell, self._count
        series = self._series_count
        after = self._free_area()
        self._allocate(after, slots, capacity)
        rows = self._rows[after]
        assert rows is not None
        rows.meta[:count] = was.meta[:count]
        rows.values[:count, :, : was.values.shape[2]] = was.values[:count]
        source, target = layout.series_at(before), layout.series_at(after)
        nbytes = series * layout.SERIES_RECORD.size
        self.base[target : target + nbytes] = self.base[source : source + nbytes]
        self._enter(after, count, series)
        self.cells[before_cell + BLOCK] = 0

    def close(self, step: int, columns: Iterable[array[float]], count: int, *, is_traced: bool) -> None:
        """A step is over: its statistics, a column of `count` tensors each."""
        rows = self._rows[self._area]
        assert rows is not None, "reserve comes first"
        slot = self._count
        for values, column in zip(rows.values[slot], columns, strict=True):
            values[:count] = column
        rows.meta[slot] = step, is_traced, count
        self._count = slot + 1
        self.cells[self._cell + STEPS] = slot + 1  # from here on it is closed

    def series(self, name: int, step: int, value: float) -> None:
        """A value of the series of that number. Past `layout.SERIES_RECORDS` a block the spool alone will have it."""
        count = self._series_count
        if count < layout.SERIES_RECORDS:
            layout.SERIES_RECORD.pack_into(
                self.base, self._series_at + count * layout.SERIES_RECORD.size, name, step, value
            )
            self._series_count = count + 1
            self.cells[self._cell + SERIES] = count + 1

    def copy(self, tensors: int, identities: FloatArray) -> FloatArray:
        """The block's rows: (statistics, steps, tensors) float64. `identities`: of what was not there yet."""
        rows = self._rows[self._area]
        if rows is None or not self._count:
            return np.empty((STATISTICS, 0, tensors))
        return copied(rows.meta[: self._count], rows.values[: self._count], tensors, identities)

    def next_block(self) -> int:
        """Go on in another area; returns the number of the block that was filled, for `sending` and `sent`."""
        block = self.block
        if not self._count and not self._series_count:
            return block - 1  # it goes on: what came before is what is done with it
        self.block += 1
        self._enter(self._free_area(), 0, 0)
        return block

    def sending(self, sequence: int, block: int, events: int) -> None:
        """The batch of `sequence` is about to be put into the spool: it has all up to this block and this event."""
        cells = self.cells
        cells[layout.SENDING] = -1
        cells[layout.SENDING_BLOCK], cells[layout.SENDING_EVENTS] = block, events
        cells[layout.SENDING] = sequence

    def sent(self) -> None:
        """It is there, or the server has it, or it has been given up."""
        cells = self.cells
        cells[layout.NEXT_SEQUENCE] = cells[layout.SENDING] + 1
        cells[layout.RELEASED_BLOCK] = max(cells[layout.RELEASED_BLOCK], cells[layout.SENDING_BLOCK])
        cells[layout.RELEASED_EVENTS] = max(cells[layout.RELEASED_EVENTS], cells[layout.SENDING_EVENTS])

    def _enter(self, area: int, count: int, series: int) -> None:
        cell = layout.area_at(area)
        self.cells[cell + BLOCK] = 0
        self.cells[cell + STEPS], self.cells[cell + SERIES] = count, series
        self.cells[cell + BLOCK] = self.block
        self._area, self._cell, self._count, self._series_count = area, cell, count, series
        self._series_at = layout.series_at(area)

    def _free_area(self) -> int:
        """Another area than the one in use: a free one, else the oldest block's, which only the sender has then."""
        released = self.cells[layout.RELEASED_BLOCK]
        blocks = {area: self.cells[layout.area_at(area) + BLOCK] for area in range(layout.AREAS) if area != self._area}
        free = [area for area, block in blocks.items() if block <= released]
        return free[0] if free else min(blocks, key=lambda area: blocks[area])

    def _allocate(self, area: int, slots: int, capacity: int) -> None:
        cell, was = layout.area_at(area), self._rows[area]
        block = self.cells[cell + BLOCK] if area == self._area else 0
        self.cells[cell + BLOCK] = 0
        if was is not None:
            self._rows[area] = None
            anonymous_file.free(was.pages)
        pages, offset = self._add(layout.rows_bytes(slots, capacity))
        self._rows[area] = _Rows(pages, *views(pages, slots, capacity))
        # In memory that only this process has there are no steps for others.
        self.cells[cell + OFFSET], self.cells[cell + SLOTS] = offset, slots if offset >= 0 else 0
        self.cells[cell + CAPACITY] = capacity
        self.cells[cell + BLOCK] = block

    def _add(self, nbytes: int) -> tuple[anonymous_file.Pages, int]:
        """Pages and their offset in the file; -1 where the kernel gives no more for that: training goes on without."""
        try:
            return self.memory.add(nbytes)
        except OSError as error:
            listener, self._listener = self._listener, None
            if listener is not None:
                listener.steps_refused(f"the kernel gives no memory that outlives it ({error.strerror})")
            return bytearray(nbytes), -1


def views(pages: Any, slots: int, capacity: int) -> tuple[Any, FloatArray]:
    """Of an area's bytes: meta cells (slots, META_CELLS) int64, and rows (slots, statistics, capacity) float64."""
    meta = np.frombuffer(pages, np.int64, slots * META_CELLS).reshape(slots, META_CELLS)
    values = np.frombuffer(pages, np.float64, slots * STATISTICS * capacity, meta.nbytes)
    return meta, values.reshape(slots, STATISTICS, capacity)


def copied(meta: Any, values: FloatArray, tensors: int, identities: FloatArray) -> FloatArray:
    """Rows of `tensors` as (statistics, steps, tensors) float64; `identities`: (statistics,)."""
    rows = values[:, :, :tensors].transpose(1, 0, 2).copy()
    for slot in np.flatnonzero(meta[:, 2] < tensors):  # what came later than that step
        rows[:, slot, meta[slot, 2] :] = identities[:, np.newaxis]
    return rows
