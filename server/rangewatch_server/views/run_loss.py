"""The loss of a run as the list of runs shows it: the newest value and some 60 over the run."""

from __future__ import annotations

from typing import Any

import numpy as np

from rangewatch_server.figures.base import Grid, Params, grid
from rangewatch_server.figures.lines import series_columns
from rangewatch_server.query.reader import RunReader

COLUMNS = 60
RECENT_STEPS = 64  # in which the newest value is looked for: a loss may be logged at every tenth step alone
LOSS = "loss"


def summary(run: RunReader) -> dict[str, Any] | None:
    """`last` the newest value, None where it is NaN or Inf, with its `step`; `values` about 60 means over the run, None
    where nothing finite was logged; `bad` the columns that hold NaN or Inf. None where no loss was logged at all.
    """
    if LOSS not in run.names().series or run.first_step is None or run.last_step is None:
        return None
    start, stop = run.first_step, run.last_step + 1
    params = Params(start=start, stop=stop, ranks=tuple(run.ranks))
    means, bad = _means(run, params, grid(start, stop, COLUMNS))
    low = max(start, stop - RECENT_STEPS)
    cut = grid(low, stop, RECENT_STEPS)
    recent, recent_bad = _means(run, params, cut)
    places = np.flatnonzero(np.isfinite(recent) | recent_bad)
    newest = int(places[-1]) if len(places) else None
    return {
        "last": None if newest is None or recent_bad[newest] else float(recent[newest]),
        "step": None if newest is None else (cut.first + newest) * cut.per,
        "values": [float(each) if np.isfinite(each) else None for each in means],
        "bad": np.flatnonzero(bad).tolist(),
    }


def _means(run: RunReader, params: Params, cut: Grid) -> tuple[np.ndarray, np.ndarray]:
    """(width,) mean of the finite values of each column, NaN where there is none, and whether it holds others."""
    columns = series_columns(run, params, cut, LOSS)
    finite = columns["count"] - columns["nonfinite_count"]
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(finite > 0, columns["sum"] / finite, np.nan)
    return means, columns["nonfinite_count"] > 0
