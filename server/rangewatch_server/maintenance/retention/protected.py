"""Where full detail stays: level 0 tiles around what somebody will want to look at again.

A NaN or Inf on any rank, a loss that is not finite, a skipped step, a failure, a trace, and where an incarnation began.
The same steps stay on every rank of the run. Found from the top of the pyramid down: it costs what is bad, not how long
the run is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from rangewatch_server.core import deadline
from rangewatch_server.numerics.pyramid import FANOUT, SERIES_PART, SUMMARY
from rangewatch_server.store import tables, tiles
from rangewatch_server.store.names import load_series

Array = NDArray[Any]
IsBad = Callable[[Array, Mapping[str, Array]], Array]

MOST_TILES = 2_000  # of one run, earliest first: a run that is NaN from some step on must not be kept in full
NEIGHBOURS = 1  # tiles on each side
KINDS = ("failed", "died")
_tile, _stream, _rank, _event = tables.tiles.c, tables.streams.c, tables.command_ranks.c, tables.events.c


def kept_tiles(connection: Connection, run_id: int) -> frozenset[int]:
    """Numbers of the level 0 tiles of a run that stay."""
    found: set[int] = set()
    query = select(_stream.id, _stream.frontier, _stream.bad_step, _stream.first_step)
    is_bad_loss = _loss_of(load_series(connection, run_id))
    for row in connection.execute(query.where(_stream.run_id == run_id)).all():
        found |= {step // tiles.WIDTH for step in (row.bad_step, row.first_step) if step is not None}
        found |= _bad_tiles(connection, run_id, row, SUMMARY, ("nan_count", "inf_count"), _is_nonfinite)
        found |= _bad_tiles(connection, run_id, row, SERIES_PART, ("nonfinite_count", "max"), is_bad_loss)
    found |= {step // tiles.WIDTH for step in _event_steps(connection, run_id)}
    return _with_neighbours(sorted(found)[:MOST_TILES])


def _with_neighbours(found: Iterable[int]) -> frozenset[int]:
    around = range(-NEIGHBOURS, NEIGHBOURS + 1)
    return frozenset(tile + each for tile in found for each in around if tile + each >= 0)


def _is_nonfinite(_: Array, columns: Mapping[str, Array]) -> Array:
    bad: Array = (columns["nan_count"] > 0) | (columns["inf_count"] > 0)
    return np.asarray(bad.any(axis=0))


def _loss_of(series: Mapping[str, int]) -> IsBad:
    loss, skipped = series.get("loss", -1), series.get("skipped_step", -1)

    def is_bad(rows: Array, columns: Mapping[str, Array]) -> Array:
        nonfinite = (columns["nonfinite_count"] > 0) & (rows == loss)[:, None]
        bad: Array = nonfinite | ((columns["max"] > 0) & (rows == skipped)[:, None])
        return np.asarray(bad.any(axis=0))

    return is_bad


def _bad_tiles(
    connection: Connection, run_id: int, stream: Any, part: str, wanted: tuple[str, ...], is_bad: IsBad
) -> set[int]:
    """Level 0 tiles with a bad column, seen from the columns of level 1."""
    level, below = _top(stream.frontier), set[int]()
    while level > 0:
        tail = stream.frontier // (tiles.WIDTH * FANOUT ** (level + 1)) * FANOUT  # not under a tile of the next level
        numbers = sorted(below | set(range(tail, stream.frontier // (tiles.WIDTH * FANOUT**level))))[:MOST_TILES]
        below, level = _bad_below(connection, (run_id, stream.id, part, level), numbers, wanted, is_bad), level - 1
    return below


def _top(frontier: int) -> int:
    """The highest level that has a tile; 0 when only the lowest has."""
    level = 0
    while frontier >= tiles.WIDTH * FANOUT ** (level + 1):
        level += 1
    return level


def _bad_below(
    connection: Connection, place: tuple[int, int, str, int], numbers: list[int], wanted: tuple[str, ...], is_bad: IsBad
) -> set[int]:
    """Tiles of the level below that a bad column of these tiles lies in."""
    run_id, stream_id, part, level = place
    mine = (_tile.run_id == run_id) & (_tile.stream_id == stream_id) & (_tile.part == part) & (_tile.level == level)
    found: set[int] = set()
    for low in range(0, len(numbers), 100):  # a hundred tiles of a summary are some 100 KiB
        query = select(_tile.tile, _tile.payload).where(mine, _tile.tile.in_(numbers[low : low + 100]))
        for tile, payload in connection.execute(query):
            deadline.check()
            found |= _seen_bad(tile, payload, wanted, is_bad)
    return found


def _seen_bad(tile: int, payload: bytes, wanted: tuple[str, ...], is_bad: IsBad) -> set[int]:
    """Tiles of the level below. All of them when this one cannot be read: what nobody knows of is not removed."""
    try:
        rows, columns = tiles.decode(payload, wanted)
    except tiles.TileError:
        return set(range(tile * FANOUT, (tile + 1) * FANOUT))
    bad = np.flatnonzero(is_bad(rows, columns)) if len(columns) == len(wanted) else np.zeros(0, np.int64)
    return {(tile * tiles.WIDTH + int(column)) // FANOUT for column in bad}


def _event_steps(connection: Connection, run_id: int) -> set[int]:
    """Steps of failures, and every step that was traced."""
    mine = select(_event.step).join(tables.streams, _stream.id == _event.stream_id)
    failed = mine.where(_stream.run_id == run_id, _event.kind.in_(KINDS), _event.step >= 0)
    found = {int(step) for step in connection.execute(failed).scalars()}
    traced = (
        select(_rank.first_step, _rank.last_step)
        .join(tables.commands, tables.commands.c.id == _rank.command_id)
        .where(tables.commands.c.run_id == run_id, _rank.last_step.is_not(None))
    )
    for first, last in connection.execute(traced):
        begin = last if first is None else max(first, last - 1_000)  # a trace has 1,000 steps at most
        found |= set(range(begin, last + 1, tiles.WIDTH)) | {last}
    return {step for step in found if step >= 0}
