"""Tiles of one run deleted by level and step, a few at a time.

The streams are marked first, so that readers already know what is about to be missing; interrupted anywhere, the next
plan finds what is left below the mark.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec
from sqlalchemy import Connection, case, delete, func, or_, select, update

from rangewatch_server.maintenance.jobs import Deadline, Jobs
from rangewatch_server.maintenance.retention.policy import UNIT, Thin, end_of, kept_at
from rangewatch_server.numerics.pyramid import PARTS
from rangewatch_server.store import tables

SLICE = 8  # tiles in one statement: with 100 KiB each some 200 pages, 2 ms
_stream, _tile = tables.streams.c, tables.tiles.c


class Gap(msgspec.Struct, frozen=True):
    """Tiles [low, high) of one stream, part and level, all to go."""

    stream_id: int
    part: str
    level: int
    low: int
    high: int


def thin(jobs: Jobs, action: Thin) -> tuple[int, int]:
    """Do it; the tiles and bytes that went."""
    marks = jobs(lambda connection: mark(connection, action))
    todo, tiles, freed = deque(_gaps(marks, action)), 0, 0
    while todo:
        gone, size = jobs(lambda connection: _delete_some(connection, action.run, todo))
        tiles, freed = tiles + gone, freed + size
    return tiles, freed


def mark(connection: Connection, action: Thin) -> list[tuple[int, int]]:
    """Say in the streams' rows what is kept around events only; (stream, the step below which its tiles go)."""
    reached = _stream.frontier // UNIT * UNIT
    step = case((reached < action.step, reached), else_=action.step)
    values = {
        "thin_step": case((_stream.thin_step > step, _stream.thin_step), else_=step),
        "thin_level": case((_stream.thin_level > action.level, _stream.thin_level), else_=action.level),
    }
    mine = (_stream.run_id == action.run) & (step > 0)
    changes = or_(_stream.thin_step < step, _stream.thin_level < action.level)
    connection.execute(update(tables.streams).where(mine, changes).values(values))
    query = select(_stream.id, _stream.thin_step).where(mine, _stream.thin_step > 0).order_by(_stream.id)
    return [(row.id, min(row.thin_step, action.step)) for row in connection.execute(query)]


def _gaps(marks: list[tuple[int, int]], action: Thin) -> Iterator[Gap]:
    for level in range(action.level):
        kept = sorted(kept_at(level, action.kept))
        for stream_id, step in marks:
            for low, high in between(kept, end_of(level, step)):
                yield from (Gap(stream_id, part, level, low, high) for part in PARTS)


def between(kept: list[int], end: int) -> Iterator[tuple[int, int]]:
    """What of [0, end) lies between the numbers `kept`, ascending."""
    low = 0
    for each in [*(number for number in kept if number < end), end]:
        if low < each:
            yield low, each
        low = each + 1


def _delete_some(connection: Connection, run_id: int, todo: deque[Gap]) -> tuple[int, int]:
    deadline, tiles, freed = Deadline(), 0, 0
    while todo and not deadline.is_over:
        gap = todo.popleft()
        mine = (_tile.run_id == run_id) & (_tile.stream_id == gap.stream_id) & (_tile.part == gap.part)
        inside = mine & (_tile.level == gap.level) & (_tile.tile >= gap.low) & (_tile.tile < gap.high)
        query = select(_tile.tile, func.length(_tile.payload)).where(inside).order_by(_tile.tile).limit(SLICE)
        found = connection.execute(query).all()
        if not found:
            continue
        connection.execute(delete(tables.tiles).where(inside, _tile.tile <= found[-1][0]))
        tiles, freed = tiles + len(found), freed + sum(size for _, size in found)
        if len(found) == SLICE:
            todo.appendleft(msgspec.structs.replace(gap, low=found[-1][0] + 1))
    return tiles, freed
