"""What a run's time went into: goodput, and MFU where the operations of a step are known. docs/memory.md has the words.

By the clock of one rank alone, the first one, since all go together: from its attach to the end of its last step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rangewatch.wire.events import Flops
from rangewatch_server.figures.base import Grid, Params, grid
from rangewatch_server.figures.lines import series_columns
from rangewatch_server.query.reader import Rank, RunReader

Array = NDArray[Any]

COLUMNS = 512
"""Of a run of any length; in a column that holds several steps those that were skipped count as its mean."""

RECENT_STEPS = 20
"""MFU is of these, as the step time that is shown."""


def goodput(run: RunReader) -> dict[str, Any] | None:
    """The share of the time in steps that counted: not skipped by a loss scaler, and not done again after a restart.

    `wall_s` is all of it, `counted_s` and `skipped_s` that of steps that are shown; what is left (`other_s`) is
    start-ups with the first step of each process, the time between processes, and `replayed_steps`, which a newer
    process did again. None where no step has a time.
    """
    rank = next((run.ranks[each] for each in sorted(run.ranks) if run.ranks[each].visible()), None)
    if rank is None or run.first_step is None or run.last_step is None:
        return None
    cut = grid(run.first_step, run.last_step + 1, COLUMNS)
    columns = {
        name: _columns(run, rank, cut, name, merged)
        for name, merged in (("step_time_s", "sum"), ("skipped_step", "sum"), ("wall_time_s", "max"))
    }
    (seconds, timed), (skips, _), (ends, known) = columns.values()
    started_s = min(row.started_ns for row in rank.rows) / 1e9
    wall_s = float(ends[known > 0].max(initial=-np.inf)) - started_s
    if not timed.any() or not 0 < wall_s < np.inf:
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(timed > 0, np.clip(skips / timed, 0, 1), 0.0)
    skipped_s = float((seconds * share).sum())
    counted_s = min(float(seconds.sum()) - skipped_s, wall_s)
    return {
        "rank": rank.rank, "share": counted_s / wall_s, "wall_s": wall_s, "counted_s": counted_s,
        "skipped_s": skipped_s, "other_s": max(0.0, wall_s - counted_s - skipped_s),
        "skipped_steps": int(skips.sum()), "replayed_steps": _replayed(rank), "starts": len(rank.rows),
    }  # fmt: skip


def _columns(run: RunReader, rank: Rank, cut: Grid, name: str, merged: str) -> tuple[Array, Array]:
    """(width,) each: sums or largest values of a series of the rank, 0 where there is none, and how many steps."""
    columns = series_columns(run, Params(start=cut.start, stop=cut.stop, ranks=(rank.rank,)), cut, name)
    count = np.maximum(columns["count"] - columns["nonfinite_count"], 0)
    return np.where(count > 0, columns[merged], 0.0), count


def _replayed(rank: Rank) -> int:
    """Steps of older processes that are not shown, since a newer one did them again."""
    count, newer_from = 0, None
    for row in reversed(rank.rows):
        if row.first_step is None:
            continue
        if newer_from is not None:
            count += max(0, row.last_step + 1 - max(row.first_step, newer_from))
        newer_from = row.first_step if newer_from is None else min(newer_from, row.first_step)
    return count


def mfu(run: RunReader) -> dict[str, Any] | None:
    """Of the newest steps: operations a second over what the device could do, on the first rank that said what a step
    takes. `share` is None where one of both, or the time, is not known. None where nobody has said anything.
    """
    events = sorted(run.newest_events([Flops.KIND]), key=lambda event: event.rank)
    event, declared = next(((each, read) for each in events if (read := each.read(Flops)) is not None), (None, None))
    if event is None or declared is None:
        return None
    seconds, tokens = (_recent(run, event.rank, name) for name in ("step_time_s", "tokens"))
    per_step = declared.per_step
    if per_step is None and declared.per_token is not None and tokens is not None:
        per_step = declared.per_token * tokens
    share = None
    if per_step is not None and declared.peak is not None and seconds:
        share = per_step / seconds / declared.peak
    return {
        "rank": event.rank, "share": share, "flops_per_step": per_step,
        "peak_flops": declared.peak, "device": declared.device, "source": declared.source, "step_time_s": seconds,
    }  # fmt: skip


def _recent(run: RunReader, rank: int, name: str) -> float | None:
    """Mean of a series' newest steps on a rank."""
    if run.last_step is None:
        return None
    cut = Grid(max(0, run.last_step + 1 - RECENT_STEPS), run.last_step + 1, 1, 0)
    values, count = _columns(run, run.ranks[rank], cut, name, "sum")
    return float(values.sum() / count.sum()) if count.any() else None
