"""The database's side of merged ranks, in the writer's transaction: the stream of rank -1, its siblings, its tiles."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from sqlalchemy import Connection, delete, func, insert, select, update

from rangewatch_server.pyramid import FANOUT, RANGES, SERIES_PART
from rangewatch_server.store import tables
from rangewatch_server.store.rows import Raw, clip
from rangewatch_server.store.stream import StreamState
from rangewatch_server.store.stream_tiles import StreamTiles
from rangewatch_server.store.tiles import WIDTH, TileError

ALL_RANKS = -1
LEVELS = 12  # 64 * 8**12 steps are more than a run can have
_streams = tables.streams.c


class Sibling(msgspec.Struct):
    """One stream of the run, as far as merging must know it."""

    id: int
    rank: int
    incarnation: str
    ordinal: int
    first_step: int | None
    last_step: int | None
    state: str
    last_seen_ns: int
    version: int


def reaches(sibling: Sibling, step: int) -> bool:
    """Whether it has rows from `step` on."""
    return sibling.last_step is not None and sibling.last_step >= step


def siblings(connection: Connection, run_id: int) -> dict[int, Sibling]:
    """All streams of the run's ranks by id."""
    columns = [_streams[name] for name in Sibling.__struct_fields__]
    rows = connection.execute(select(*columns).where(_streams.run_id == run_id, _streams.rank >= 0))
    return {row.id: Sibling(*row) for row in rows}


def stamp(connection: Connection, run_id: int) -> tuple[int, int]:
    """How many streams the run's ranks have, and the sum of their versions: what changes when any of them does."""
    query = select(func.count(), func.coalesce(func.sum(_streams.version), 0))
    count, versions = connection.execute(query.where(_streams.run_id == run_id, _streams.rank >= 0)).one()
    return count, int(versions)


def thin_step(connection: Connection, run_id: int) -> int:
    """The step below which level 0 tiles may be gone."""
    query = select(func.coalesce(func.max(_streams.thin_step), 0)).where(_streams.run_id == run_id)
    return int(connection.execute(query).scalar_one())


def load(connection: Connection, run_id: int) -> StreamState | None:
    """The stream of all ranks; None before its first tile."""
    mine = (_streams.run_id == run_id) & (_streams.rank == ALL_RANKS)
    row = connection.execute(select(tables.streams).where(mine)).first()
    if row is None:
        return None
    return StreamState(
        row.id, run_id, ALL_RANKS, frontier=row.frontier, rewrites=row.rewrites, version=row.version,
        first_step=row.first_step, last_step=row.last_step,
    )  # fmt: skip


def make(connection: Connection, run_id: int) -> StreamState:
    """The stream of all ranks, new."""
    values = {
        "run_id": run_id, "rank": ALL_RANKS, "incarnation": "", "ordinal": 0, "info": b"", "started_ns": 0,
        "last_seen_ns": 0, "state": "merged",
    }  # fmt: skip
    made = connection.execute(insert(tables.streams).values(values).returning(_streams.id)).scalar_one()
    return StreamState(made, run_id, ALL_RANKS)


def store(connection: Connection, stream: StreamState) -> None:
    """What changed of it."""
    names = ("frontier", "rewrites", "version", "first_step", "last_step")
    values = {name: getattr(stream, name) for name in names}
    connection.execute(update(tables.streams).where(_streams.id == stream.id).values(values))


def delete_tiles(connection: Connection, stream: StreamState, frontier: int) -> None:
    """Tiles of every level that hold steps from `frontier` on."""
    tiles = tables.tiles.c
    mine = (tiles.run_id == stream.run_id) & (tiles.stream_id == stream.id)
    for level in range(LEVELS):
        first = frontier // (WIDTH * FANOUT**level)
        connection.execute(delete(tables.tiles).where(mine, tiles.level == level, tiles.tile >= first))


def stored_rows(stream_tiles: StreamTiles, start: int, stop: int) -> Iterator[Raw]:
    """Rows of the level 0 tiles of a stream over [start, stop)."""
    for tile in range(start // WIDTH, -(-stop // WIDTH)):
        for part in (RANGES, SERIES_PART):
            try:
                block = stream_tiles.get(part, 0, tile)
            except TileError:  # the reader says so, and folding replaces it
                continue
            if block is not None and len(block.rows):
                steps = np.arange(block.first, block.first + WIDTH)
                yield clip(Raw(part, steps, block.rows, block.columns), start, stop)
