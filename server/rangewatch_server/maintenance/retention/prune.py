"""A plan carried out: thinned, removed, and the space given back. Each job is a transaction of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone

from sqlalchemy import Connection, Engine

from rangewatch_server.maintenance.jobs import Jobs
from rangewatch_server.maintenance.retention.plan import has_ended
from rangewatch_server.maintenance.retention.policy import Action, Remove, Thin, Trim
from rangewatch_server.maintenance.retention.runs_delete import give_up_restores, mark_deleted, remove_rows, unfinished
from rangewatch_server.maintenance.retention.space import give_back
from rangewatch_server.maintenance.retention.thinning import thin
from rangewatch_server.maintenance.retention.trimming import trim

Told = Callable[[str], None]
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
    reported: Told,
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
