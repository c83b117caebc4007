"""What steps spend their time on: the phases of a step, stacked, of one rank or the mean of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch_server.figures.base import Figure, Grid, Params, grid_of, layout, typed
from rangewatch_server.figures.lines import MS, to_grid
from rangewatch_server.phase_shares import LAST_STEPS, PHASES, phase_shares
from rangewatch_server.pyramid import SERIES_PART

if TYPE_CHECKING:
    from rangewatch_server.queries import RunReader

Array = NDArray[Any]

JUDGED_RANKS = 64
"""Ranks that are read one by one for `meta.shares`, evenly among those asked for: a few ms each."""

_WHOLE = "step_time_s"
_COLUMNS = ("count", "nonfinite_count", "max", "sum")


def build(run: RunReader, params: Params) -> dict[str, Any]:
    """The figure `phases` of docs/api.md."""
    cut = grid_of(run, params, merged=1)
    found = _columns(run, params.ranks, cut)
    whole, x = found[_WHOLE], cut.centres()
    # Each phase is divided by the same count, so that the areas add up to the mean step, also where not every rank
    # knows every phase. Steps of an agent that tells of no phases are left out.
    steps = found[_series("other")]["count"]
    shown = (steps > 0) & (whole["nonfinite_count"] == 0)
    known = [phase for phase in PHASES if (found[_series(phase)]["count"][shown] > 0).any()]
    data = [_area(phase, x[shown], found[_series(phase)]["sum"][shown] / steps[shown] * MS) for phase in known]
    data += [_worst(phase, x[shown], found[_series(phase)]["max"][shown] * MS) for phase in known]
    if known:
        data.append(_line("slowest step", x[shown], whole["max"][shown] * MS))
    meta = cut.meta() | {
        "note": _note(cut, params), "phases": known, "unknown": [phase for phase in PHASES if phase not in known],
        "empty": None if known else "no phases were recorded of these steps", **_judged(run, params),
    }  # fmt: skip
    return {"figure": {"data": data, "layout": layout("ms", rangemode="tozero")}, "meta": meta}


def read_seconds(run: RunReader, ranks: Sequence[int], start: int, stop: int) -> Array:
    """(ranks, phases, steps) float64 seconds of each step in [start, stop), NaN where not known: for `phase_shares`."""
    cut = Grid(start, stop, 1, 0)
    seconds = np.full((len(ranks), len(PHASES), cut.width), np.nan)
    for at, rank in enumerate(ranks):
        found = _columns(run, (rank,), cut)
        for row, phase in enumerate(PHASES):
            count, total = found[_series(phase)]["count"], found[_series(phase)]["sum"]
            seconds[at, row] = np.where(count > 0, total, np.nan)
    return seconds


def _series(phase: str) -> str:
    return f"{phase}_s"


def _columns(run: RunReader, ranks: Sequence[int], cut: Grid) -> dict[str, dict[str, Array]]:
    """Of each series the merged `_COLUMNS`, each (width,); a series that was never recorded has a count of 0."""
    names = run.names()
    ids = {name: names.series[name] for name in (_WHOLE, *map(_series, PHASES)) if name in names.series}
    empty = {each: np.full(cut.width, names.fill[SERIES_PART][each]) for each in _COLUMNS}
    found = dict.fromkeys((_WHOLE, *map(_series, PHASES)), empty)
    if ids and cut.width:
        rows = np.sort(np.array(list(ids.values())))
        block = run.slice(SERIES_PART, ranks, cut.level, cut.start, cut.stop, _COLUMNS, rows)
        columns = to_grid(block, cut, names.rules[SERIES_PART])
        for name, number in ids.items():
            found[name] = {each: values[int(np.searchsorted(rows, number))] for each, values in columns.items()}
    return found


def _judged(run: RunReader, params: Params) -> dict[str, Any]:
    """The part of `meta` that says what the last of these steps went into."""
    stop = min(params.stop, -1 if run.last_step is None else run.last_step + 1)
    start = max(params.start, stop - 2 * LAST_STEPS)  # late ones and gaps take some
    every = -(-len(params.ranks) // JUDGED_RANKS) or 1
    ranks = params.ranks[::every]
    seconds = read_seconds(run, ranks, start, stop) if start < stop else np.zeros((len(ranks), len(PHASES), 0))
    found = phase_shares(ranks, seconds)
    return {
        "dominant": found.dominant,
        "is_loader_bound": found.is_loader_bound,
        "loader_bound_ranks": list(found.loader_bound_ranks),
        "shares": [msgspec.to_builtins(each) for each in found.ranks],
    }


def _note(cut: Grid, params: Params) -> str:
    who = f"rank {params.ranks[0]}" if len(params.ranks) == 1 else f"mean of {len(params.ranks)} ranks"
    return f"{who}; each column: one step" if cut.per == 1 else f"{who}; each column: mean of {cut.per} steps"


def _area(phase: str, x: Array, y: Array) -> dict[str, Any]:
    return _line(phase.replace("_", " "), x, y) | {"stackgroup": "phases", "line": {"width": 0}}


def _worst(phase: str, x: Array, y: Array) -> dict[str, Any]:
    """The longest of any rank and step in each column: these do not add up, so they are lines, and off at first."""
    return _line(f"{phase.replace('_', ' ')}, worst", x, y) | {"visible": "legendonly"}


def _line(name: str, x: Array, y: Array) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "name": name, "x": typed(x, "f8"), "y": typed(y, "f8")}


FIGURE = Figure("phases", "Step phases", "What each step spent its time on, stacked; mean of the ranks.", build)
