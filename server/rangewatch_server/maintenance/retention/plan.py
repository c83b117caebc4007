"""What a plan needs to know of the database, read in short transactions: one for each run.

Level 0 tiles stay around what somebody will want to look at again: a NaN or Inf on any rank, a loss that is not finite,
a skipped step, a failure, a trace, and where an incarnation began; the same steps on every rank. They are searched from
the top of the pyramid down: it costs what is bad, not how long the run is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, case, func, select, text

from rangewatch_server.core import deadline
from rangewatch_server.maintenance.retention.clocks import corrected, made_ns
from rangewatch_server.maintenance.retention.policy import TOP, UNIT, Action, Policy, RunDetails, Span, Stored, plan
from rangewatch_server.maintenance.retention.runs_delete import DELETED
from rangewatch_server.maintenance.retention.trimming import stored_samples
from rangewatch_server.numerics.pyramid import FANOUT, SERIES_PART, SUMMARY
from rangewatch_server.query import events
from rangewatch_server.store import tables, tiles
from rangewatch_server.store.names import load_series

Array = NDArray[Any]
IsBad = Callable[[Array, Mapping[str, Array]], Array]

MOST_TILES = 2_000  # of one run, earliest first: a run that is NaN from some step on must not be kept in full
NEIGHBOURS = 1  # tiles on each side
KINDS = ("failed", "died")
_tile, _stream, _rank = tables.tiles.c, tables.streams.c, tables.command_ranks.c


def kept_tiles(connection: Connection, run_id: int) -> frozenset[int]:
    """Numbers of the level 0 tiles of a run that stay."""
    numbers: set[int] = set()
    query = select(_stream.id, _stream.frontier, _stream.bad_step, _stream.first_step)
    is_bad_loss = _loss_of(load_series(connection, run_id))
    for row in connection.execute(query.where(_stream.run_id == run_id)).all():
        numbers |= {step // tiles.WIDTH for step in (row.bad_step, row.first_step) if step is not None}
        numbers |= _bad_tiles(connection, run_id, row, SUMMARY, ("nan_count", "inf_count"), _is_nonfinite)
        numbers |= _bad_tiles(connection, run_id, row, SERIES_PART, ("nonfinite_count", "max"), is_bad_loss)
    numbers |= {step // tiles.WIDTH for step in _event_steps(connection, run_id)}
    return _with_neighbours(sorted(numbers)[:MOST_TILES])


def _with_neighbours(numbers: Iterable[int]) -> frozenset[int]:
    around = range(-NEIGHBOURS, NEIGHBOURS + 1)
    return frozenset(tile + each for tile in numbers for each in around if tile + each >= 0)


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
    bad_tiles: set[int] = set()
    for low in range(0, len(numbers), 100):  # a hundred tiles of a summary are some 100 KiB
        query = select(_tile.tile, _tile.payload).where(mine, _tile.tile.in_(numbers[low : low + 100]))
        for tile, payload in connection.execute(query):
            deadline.check()
            bad_tiles |= _seen_bad(tile, payload, wanted, is_bad)
    return bad_tiles


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
    steps = events.steps(connection, run_id, KINDS)
    traced = (
        select(_rank.first_step, _rank.last_step)
        .join(tables.commands, tables.commands.c.id == _rank.command_id)
        .where(tables.commands.c.run_id == run_id, _rank.last_step.is_not(None))
    )
    for first, last in connection.execute(traced):
        begin = last if first is None else max(first, last - 1_000)  # a trace has 1,000 steps at most
        steps |= set(range(begin, last + 1, tiles.WIDTH)) | {last}
    return {step for step in steps if step >= 0}


ENDED_NS = 3_600 * 10**9  # an open stream that was silent for an hour has ended: a checkpoint may take minutes
MERGED_NS = 86_400 * 10**9  # a run that ended longer ago is not merged any more
_run, _stream, _tile, _batch = tables.runs.c, tables.streams.c, tables.tiles.c, tables.batches.c
_event, _catalogue = tables.events.c, tables.catalogues.c
Bound = Callable[[Connection], AbstractContextManager[None]]
"""Put around the reads of one run."""


def planned(
    engine: Engine, policy: Policy, now_ns: int | None = None, bound: Bound = lambda _: nullcontext()
) -> list[Action]:
    """What goes now by the policy. Reads each run's sizes, some ms for each, only where something may have to go.

    What was deleted and still has rows is not counted: it goes anyway.
    """
    now_ns = time.time_ns() if now_ns is None else now_ns
    used_bytes = held_bytes(engine) - (_going_bytes(engine) if engine.dialect.name == "sqlite" else 0)
    if policy.keep_days is None and (policy.keep_bytes is None or used_bytes <= policy.keep_bytes):
        return []
    runs = [details for each in run_ids(engine) if (details := run_details(engine, each, now_ns, bound)) is not None]
    if engine.dialect.name == "postgresql":  # dead rows are part of its files until it is vacuumed, and are reused
        used_bytes = sum(run.bytes for run in runs)
    return plan(runs, policy, now_ns, used_bytes)


def held_bytes(engine: Engine) -> int:
    """Bytes in use. SQLite: pages that are not free; PostgreSQL: all tables with their indexes, dead rows too."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            pages, free, size = (_pragma(connection, name) for name in ("page_count", "freelist_count", "page_size"))
            return (pages - free) * size
        query = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r'"
        return int(connection.execute(text(f"{query} AND relnamespace = current_schema()::regnamespace")).scalar() or 0)


def _pragma(connection: Connection, name: str) -> int:
    return int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())


def run_ids(engine: Engine) -> list[int]:
    """All runs that were not deleted."""
    with engine.connect() as connection:
        return list(connection.execute(select(_run.id).where(_run.deleted_ns.is_(None)).order_by(_run.id)).scalars())


def _going_bytes(engine: Engine) -> int:
    """Bytes of the rows of runs that were deleted, or are not wholly restored."""
    here = _run.deleted_ns.is_not(None) & ~_run.identity.startswith(DELETED)
    with engine.connect() as connection:
        going = list(connection.execute(select(_run.id).where(here)).scalars())
        return sum(_sum(connection, size, run == each) for each in going for size, run in _LARGE)


_LARGE = (
    (_tile.payload, _tile.run_id),
    (_batch.body, _batch.run_id),
    (tables.samples.c.payload, tables.samples.c.run_id),
)


def _sum(connection: Connection, column: Any, where: Any) -> int:
    query = select(func.coalesce(func.sum(func.length(column)), 0)).where(where)
    return int(connection.execute(query).scalar_one())


def run_details(engine: Engine, run_id: int, now_ns: int, bound: Bound = lambda _: nullcontext()) -> RunDetails | None:
    """One run in one read transaction; None when there is no such run, or it has neither steps nor samples."""
    with engine.connect() as connection, bound(connection):
        run = connection.execute(select(_run.name, _run.created_ns).where(_run.id == run_id)).first()
        rows = connection.execute(select(tables.streams).where(_stream.run_id == run_id)).all()
        ranks = [row for row in rows if row.rank >= 0]
        if run is None or not ranks:
            return None
        kept, (stored, tile_bytes) = kept_tiles(connection, run_id), _stored(connection, run_id)
        heard, created_ns = corrected(connection, run_id, now_ns), made_ns(connection, run_id, now_ns)
        samples, sample_bytes = stored_samples(connection, run_id, kept, heard)
        if not sample_bytes and not any(row.first_step is not None for row in ranks):
            return None
        return RunDetails(
            run_id, run.name, kept=kept, stored=stored, spans=_spans(ranks, created_ns, heard), samples=samples,
            bytes=tile_bytes + sample_bytes + _other_bytes(connection, run_id), corrected=heard,
            **_steps(rows, ranks, now_ns, heard),
        )  # fmt: skip


def has_ended(connection: Connection, run_id: int, now_ns: int) -> bool:
    """Whether no process of the run sends any more."""
    query = select(_stream.state, _stream.last_seen_ns).where(_stream.run_id == run_id, _stream.rank >= 0)
    return not any(_sends(row, now_ns) for row in connection.execute(query))


def _sends(row: Any, now_ns: int) -> bool:
    return row.state == "open" and now_ns - row.last_seen_ns < ENDED_NS


def _other_bytes(connection: Connection, run_id: int) -> int:
    """Of a run's rows that no thinning takes."""
    mine = _event.stream_id.in_(select(_stream.id).where(_stream.run_id == run_id))
    wheres = (
        (_batch.body, _batch.run_id == run_id),
        (_event.data, mine),
        (_catalogue.body, _catalogue.run_id == run_id),
    )
    return sum(_sum(connection, column, where) for column, where in wheres)


def _spans(ranks: Sequence[Any], created_ns: int, heard: Mapping[int, int]) -> tuple[Span, ...]:
    """`started_ns` is of an agent's clock, which may say 1970; the run was made and last seen by ours. Where that was
    `corrected`, all of the process's steps are as old as its last.
    """
    spans = []
    for row in ranks:
        if row.first_step is not None:
            last_ns = heard.get(row.id, row.last_seen_ns)
            begun_ns = last_ns if row.id in heard else min(max(row.started_ns, created_ns), last_ns)
            spans.append(Span(begun_ns, last_ns, row.first_step, row.last_step))
    return tuple(spans)


def _steps(rows: Sequence[Any], ranks: Sequence[Any], now_ns: int, heard: Mapping[int, int]) -> dict[str, Any]:
    sends = [row for row in ranks if _sends(row, now_ns)]
    last_seen_ns = max(heard.get(row.id, row.last_seen_ns) for row in ranks)
    frontier = min(row.frontier for row in sends) if sends else max(row.frontier for row in ranks)
    if len({row.rank for row in ranks}) > 1 and now_ns - last_seen_ns < MERGED_NS:
        # The merged ranks are made of single steps: what they have not passed yet stays.
        frontier = min(frontier, max((row.frontier for row in rows if row.rank < 0), default=0))
    # A process that came after the run was thinned has no mark: what is left of the others' steps is only a few tiles,
    # but its own steps are new. One that never reached the end of a tile of level 1 cannot be marked.
    marked = [row for row in rows if row.frontier >= UNIT] or rows
    return {
        "has_ended": not sends, "last_seen_ns": last_seen_ns, "frontier": frontier,
        "thin_step": min(row.thin_step for row in marked), "thin_level": min(row.thin_level for row in marked),
    }  # fmt: skip


def _stored(connection: Connection, run_id: int) -> tuple[tuple[Stored, ...], int]:
    """Tiles that may go, as the tile above them is there; and the bytes of all tiles."""
    span = case({level: UNIT * FANOUT**level for level in range(TOP)}, value=_tile.level, else_=2**62)
    has_above = _tile.tile < _stream.frontier // span * FANOUT
    query = (
        select(_tile.level, _tile.tile, has_above, func.count(), func.sum(func.length(_tile.payload)))
        .join(tables.streams, _stream.id == _tile.stream_id)
        .where(_tile.run_id == run_id)
        .group_by(_tile.level, _tile.tile, has_above)
    )
    rows = connection.execute(query).all()
    going = tuple(Stored(level, tile, count, int(size)) for level, tile, above, count, size in rows if above)
    return going, sum(int(size) for *_, size in rows)
