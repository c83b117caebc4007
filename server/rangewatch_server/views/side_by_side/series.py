"""Series of a run over its own columns, for lines that are laid over those of other runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rangewatch_server.figures.base import Grid, Params, grid_of, typed
from rangewatch_server.figures.heatmaps.ranks import summary_cells
from rangewatch_server.figures.lines import to_grid
from rangewatch_server.numerics.pyramid import SERIES_PART, SUMMARY
from rangewatch_server.query.reader import RunReader

Array = NDArray[Any]

MOST_NAMES = 24  # series of one answer
WALL_TIME = "wall_time_s"
TOKENS = ("tokens", "train/tokens", "num_tokens", "tokens_seen", "num_input_tokens_seen", "train/num_input_tokens_seen")
_WANTED = ("count", "nonfinite_count", "min", "max", "sum")
_OF_HEADROOM = ("observed", "bits", "nan_count", "inf_count")


def lines(run: RunReader, names: Sequence[str], columns: int) -> dict[str, Any]:
    """`steps`, and for each step or column of several the time since the first in `seconds`, and `tokens`, where they
    are known; by name the mean, least and greatest of ranks and steps. (n,) float64 each, NaN where nothing finite was
    logged; `headroom` in bits, the least.
    """
    low, high = run.first_step, run.last_step
    stop = 0 if high is None else high + 1
    params = Params(start=low or 0, stop=stop, ranks=tuple(sorted(run.ranks)), columns=columns)
    cut = grid_of(run, params, merged=1)
    tokens = next((name for name in TOKENS if name in run.names().series), None)
    wanted = [
        name for name in dict.fromkeys((*names, WALL_TIME, *([tokens] if tokens else ()))) if name in run.names().series
    ]
    merged = _merged(run, params, cut, wanted)
    seconds = None
    if WALL_TIME in merged:
        at = merged[WALL_TIME]["high"]
        seconds = at - np.nanmin(at) if np.isfinite(at).any() else None
    return {
        "id": run.id, "first_step": low, "last_step": high, "steps_per_column": cut.per,
        "steps": typed(cut.centres(), "f8"),
        "seconds": None if seconds is None else typed(seconds, "f8"),
        "tokens": typed(merged[tokens]["high"], "f8") if tokens else None, "tokens_name": tokens,
        "series": {
            name: {part: typed(values, "f8") for part, values in merged[name].items()}
            for name in names
            if name in merged
        },
        "headroom": typed(_headroom(run, params, cut), "f8"),
    }  # fmt: skip


def _merged(run: RunReader, params: Params, cut: Grid, names: Sequence[str]) -> dict[str, dict[str, Array]]:
    if not names or not cut.width:
        return {}
    known = run.names()
    rows = np.array(sorted(known.series[name] for name in names))
    block = run.slice(SERIES_PART, params.ranks, cut.level, cut.start, cut.stop, _WANTED, rows)
    columns = to_grid(block, cut, known.rules[SERIES_PART])
    place = {int(row): at for at, row in enumerate(block.rows)}
    merged = {}
    for name in names:
        at = place.get(known.series[name])
        if at is None:
            continue
        finite = columns["count"][at] - columns["nonfinite_count"][at]
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(finite > 0, columns["sum"][at] / finite, np.nan)
        low, high = (np.where(finite > 0, columns[part][at], np.nan) for part in ("min", "max"))
        merged[name] = {"mean": mean, "low": low, "high": high}
    return merged


def _headroom(run: RunReader, params: Params, cut: Grid) -> Array:
    if not cut.width:
        return np.zeros(0)
    block = run.slice(
        SUMMARY, list(params.ranks), cut.level, cut.start, cut.stop, ("observed", "bits", "nan_count", "inf_count")
    )
    cells = summary_cells(block).pooled(cut.edges(block.first, block.width), 1)
    return np.where(cells.has_headroom[0], cells.bits[0], np.nan).astype(float)
