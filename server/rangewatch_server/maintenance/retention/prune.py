"""A plan carried out: thinned, removed, and the space given back. Each job is a transaction of its own.

Of tiles the streams are marked first, so that readers already know what is about to be missing; interrupted anywhere,
the next plan finds what is left below the mark.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone

import msgspec
from sqlalchemy import Connection, Engine, case, delete, func, or_, select, update

from rangewatch_server.maintenance.jobs import Deadline, Jobs
from rangewatch_server.maintenance.retention.plan import has_ended
from rangewatch_server.maintenance.retention.policy import UNIT, Action, Remove, Thin, Trim, end_of, kept_at
from rangewatch_server.maintenance.retention.runs_delete import give_up_restores, mark_deleted, remove_rows, unfinished
from rangewatch_server.maintenance.retention.space import give_back
from rangewatch_server.maintenance.retention.trimming import trim
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
        rows = connection.execute(query).all()
        if not rows:
            continue
        connection.execute(delete(tables.tiles).where(inside, _tile.tile <= rows[-1][0]))
        tiles, freed = tiles + len(rows), freed + sum(size for _, size in rows)
        if len(rows) == SLICE:
            todo.appendleft(msgspec.structs.replace(gap, low=rows[-1][0] + 1))
    return tiles, freed


OnProgress = Callable[[str], None]
"""Gets a line for a person."""


def table_of(actions: Sequence[Action]) -> list[str]:
    """The plan as lines, with totals."""
    if not actions:
        return ["Nothing to remove."]
    lines = [f"{'run':>6}  {'what goes':<58}{'rows':>9}{'MB':>11}"]
    total = 0
    for each in actions:
        rows = None if isinstance(each, Remove) else _rows(each)
        total += rows or 0
        lines.append(
            f"{each.run:>6}  {described(each):<58}{'all' if rows is None else rows:>9}{each.bytes / 1e6:>11.1f}"
        )
    return [*lines, f"{'':>6}  {'total':<58}{total:>9}{sum(each.bytes for each in actions) / 1e6:>11.1f}"]


def _rows(action: Thin | Trim) -> int:
    return action.tiles if isinstance(action, Thin) else action.chunks


def described(action: Action) -> str:
    """What goes, in words."""
    if isinstance(action, Thin):
        return f"detail before step {action.step}, finer than {8**action.level} steps a column"
    if isinstance(action, Trim):
        return f"samples from before {datetime.fromtimestamp(action.before_ns / 1e9, timezone.utc):%Y-%m-%d %H:%M} UTC"
    return "the whole run, which has ended"


def apply(
    jobs: Jobs,
    engine: Engine,
    actions: Sequence[Action],
    reported: OnProgress,
    changed: Callable[[int], None] = lambda _: None,
) -> None:
    """Carry out a plan. `engine`: the writer's, for VACUUM in PostgreSQL only. `changed` gets each run when it did."""
    for number, action in enumerate(actions, 1):
        reported(f"{number} of {len(actions)}: run {action.run}: {described(action)}")
        if isinstance(action, Thin):
            tiles, freed = thin(jobs, action)
            reported(f"  {tiles} tiles, {freed / 1e6:.1f} MB")
            changed(action.run)
        elif isinstance(action, Trim):
            chunks, freed = trim(jobs, action)
            reported(f"  {chunks} chunks of samples, {freed / 1e6:.1f} MB")
            changed(action.run)
        elif jobs(lambda connection, run=action.run: _mark_ended(connection, run), forgets=True) is None:  # type: ignore[misc]
            reported("  it goes on again, or is gone; nothing was removed")
        else:
            changed(action.run)
            remove_rows(jobs, action.run)
    if actions:
        give_back(jobs, engine, [action.run for action in actions], reported)


def _mark_ended(connection: Connection, run_id: int) -> str | None:
    """As `mark_deleted`; None, too, for a run that goes on again: thinning the others may have taken minutes."""
    return mark_deleted(connection, run_id) if has_ended(connection, run_id, time.time_ns()) else None


def finish_deletions(jobs: Jobs, engine: Engine) -> list[int]:
    """Go on with deletions that were interrupted, or have been asked for; their runs.

    Before a plan is made, or rows of theirs would count as used. The caller knows that this process restores nothing.
    """
    jobs(give_up_restores)
    runs = unfinished(engine)
    for run_id in runs:
        remove_rows(jobs, run_id)
    return runs
