"""What a plan needs to know of the database, read in short transactions: one for each run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sqlalchemy import Connection, Engine, case, func, select, text

from rangewatch_server.maintenance.retention.policy import TOP, UNIT, Action, Policy, RunDetails, Span, Stored, plan
from rangewatch_server.maintenance.retention.protected import kept_tiles
from rangewatch_server.maintenance.retention.runs_delete import DELETED
from rangewatch_server.maintenance.retention.trimming import stored_samples
from rangewatch_server.numerics.pyramid import FANOUT
from rangewatch_server.store import tables

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
    runs = [found for each in run_ids(engine) if (found := run_facts(engine, each, now_ns, bound)) is not None]
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


def run_facts(engine: Engine, run_id: int, now_ns: int, bound: Bound = lambda _: nullcontext()) -> RunDetails | None:
    """One run in one read transaction; None when there is no such run, or it has neither steps nor samples."""
    with engine.connect() as connection, bound(connection):
        run = connection.execute(select(_run.name, _run.created_ns).where(_run.id == run_id)).first()
        rows = connection.execute(select(tables.streams).where(_stream.run_id == run_id)).all()
        ranks = [row for row in rows if row.rank >= 0]
        if run is None or not ranks:
            return None
        kept, (stored, tile_bytes) = kept_tiles(connection, run_id), _stored(connection, run_id)
        samples, sample_bytes = stored_samples(connection, run_id, kept)
        if not sample_bytes and not any(row.first_step is not None for row in ranks):
            return None
        return RunDetails(
            run_id, run.name, kept=kept, stored=stored, spans=_spans(ranks, run.created_ns), samples=samples,
            bytes=tile_bytes + sample_bytes + _other_bytes(connection, run_id), **_steps(rows, ranks, now_ns),
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


def _spans(ranks: Sequence[Any], created_ns: int) -> tuple[Span, ...]:
    """`started_ns` is told by an agent's clock, which may say 1970; the run was made and last seen by ours."""
    return tuple(
        Span(min(max(row.started_ns, created_ns), row.last_seen_ns), row.last_seen_ns, row.first_step, row.last_step)
        for row in ranks
        if row.first_step is not None
    )


def _steps(rows: Sequence[Any], ranks: Sequence[Any], now_ns: int) -> dict[str, Any]:
    sends = [row for row in ranks if _sends(row, now_ns)]
    last_seen_ns = max(row.last_seen_ns for row in ranks)
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
