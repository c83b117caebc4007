"""Where things are in the memory that is shared with the watcher: whole numbers of 8 bytes ("cells") unless said else.

    cells 0 .. 63         where the process is, see the names below
    cells 64 .. 319       process groups, `GROUP_CELLS` each
    cells 320 ..          areas, `AREA_CELLS` each: one block of closed steps that is on its way to the spool
    from HEADER_BYTES     each area's series: `SERIES_RECORDS` of three doubles (name's number, step, value)
    from BASE_BYTES       the areas' rows, at the offsets that their cells tell

A process may be killed between any two stores, never in one, and what it has stored is there: so what makes the others
valid (a count, a block's number) is stored last.
"""

from __future__ import annotations

from struct import Struct

from rangewatch import statistics

MAGIC = 0x5257_4B45_5054_0001
"""With the version of this layout in its last two bytes."""

SIGNATURE, CLOSED = 0, 4
"""The layout; how the agent ended (`OPEN`, `DETACHED`, `FAILED` or `AT_EXIT`). Between them the cells of
`recording.rows.mirror`: `STEP`, `PHASE` and `TENSOR`."""

RELEASED_BLOCK, RELEASED_EVENTS = 5, 6
"""Blocks and events that are in the spool, or that the server has, up to these."""

SENDING, SENDING_BLOCK, SENDING_EVENTS = 7, 8, 9
"""The sequence of the batch that is being put into the spool, -1 for none, and what it releases once it is there."""

NEXT_SEQUENCE = 10
"""One more than any sequence used."""

OPEN, DETACHED, AT_EXIT, FAILED = 0, 1, 2, 3
"""It did not say goodbye; `detach`; the end of the process; an exception, which it has reported."""

GROUPS_AT, GROUPS, GROUP_CELLS = 64, 64, 4
ENQUEUED, COMPLETED, OP, KNOWS_ENDS = range(GROUP_CELLS)
"""Sequences of the last collective called and of the last that ended; the last op's number; whether ends are known."""

AREAS_AT, AREAS, AREA_CELLS = 320, 4, 8
BLOCK, STEPS, SERIES, OFFSET, SLOTS, CAPACITY = range(6)
"""The block's number, 0 for none; closed steps and series values in it; where its rows are, for how many steps and how
many tensors."""

HEADER_BYTES = 4096
SERIES_RECORDS = 8192
SERIES_RECORD = Struct("<ddd")
SERIES_BYTES = SERIES_RECORDS * SERIES_RECORD.size
BASE_BYTES = HEADER_BYTES + AREAS * SERIES_BYTES

META_CELLS = 3
"""Of each slot, before the rows: its step, whether it was traced, and how many tensors there were then."""

STATISTICS = len(statistics.ALL)


def area_at(area: int) -> int:
    """The first cell of an area."""
    return AREAS_AT + area * AREA_CELLS


def series_at(area: int) -> int:
    """The byte at which an area's series begin."""
    return HEADER_BYTES + area * SERIES_BYTES


def rows_bytes(slots: int, capacity: int) -> int:
    """Bytes of an area's slots: their meta cells, then (slots, statistics, capacity) doubles."""
    return 8 * slots * (META_CELLS + STATISTICS * capacity)
