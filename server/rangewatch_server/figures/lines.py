"""Lines over steps: loss, loss scale, step time, and one tensor's magnitudes.

Where a column holds several steps, a line gets both its smallest and its largest value, so a spike of one step is drawn
at every zoom.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rangewatch_server.figures.base import Figure, Grid, Params, grid_of, label, layout, typed
from rangewatch_server.numerics.headroom import limits_of
from rangewatch_server.numerics.pyramid import RANGES, SERIES_PART, Block

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader

Array = NDArray[Any]

MS = 1_000.0


def series_columns(run: RunReader, params: Params, cut: Grid, name: str) -> dict[str, Array]:
    """One series merged over ranks, per column of the grid: count, nonfinite_count, min, max, sum, each (width,)."""
    names = run.names()
    if name not in names.series:
        return {each: np.full(cut.width, names.fill[SERIES_PART][each]) for each in names.fill[SERIES_PART]}
    wanted = ("count", "nonfinite_count", "min", "max", "sum")
    rows = np.array([names.series[name]])
    block = run.slice(SERIES_PART, params.ranks, cut.level, cut.start, cut.stop, wanted, rows)
    return {each: values[0] for each, values in to_grid(block, cut, names.rules[SERIES_PART]).items()}


def to_grid(block: Block, cut: Grid, rules: dict[str, str]) -> dict[str, Array]:
    """A block's columns merged to the grid's, each (rows, width)."""
    edges = cut.edges(block.first, block.width)
    if len(edges) == block.width:
        return block.columns
    return {name: _reduced(values, edges, rules[name]) for name, values in block.columns.items()}


def _reduced(values: Array, edges: Array, rule: str) -> Array:
    ufunc = {"max": np.maximum, "min": np.minimum, "sum": np.add}[rule]
    return ufunc.reduceat(values.astype(np.float64, copy=False), edges, axis=1)


def extremes(x: Array, low: Array, high: Array, present: Array) -> tuple[Array, Array]:
    """Points of a line through each column's smallest and largest value; one point where they are equal."""
    same = low == high
    points = np.stack([low, high], axis=1)
    keep = np.stack([present, present & ~same], axis=1)
    return np.repeat(x[:, None], 2, axis=1)[keep], points[keep]


def loss(run: RunReader, params: Params) -> dict[str, Any]:
    """The figure `loss` of docs/api.md."""
    return logged(run, params, "loss")


def logged(run: RunReader, params: Params, name: str) -> dict[str, Any]:
    """One series: the mean of the ranks at a step, the extremes of several."""
    cut = grid_of(run, params, merged=1)
    found = series_columns(run, params, cut, name)
    finite = found["count"] - found["nonfinite_count"]
    x = cut.centres()
    if cut.per == 1:
        shown = finite > 0
        xs, ys = x[shown], found["sum"][shown] / finite[shown]
    else:
        xs, ys = extremes(x, found["min"], found["max"], finite > 0)
    bad = x[found["nonfinite_count"] > 0]
    return _figure([_line(name, xs, ys)], layout(name), cut.meta() | {"nonfinite_steps": bad.tolist()})


def loss_scale(run: RunReader, params: Params) -> dict[str, Any]:
    """The figure `loss_scale` of docs/api.md."""
    cut = grid_of(run, params, merged=1)
    scale, skipped = (series_columns(run, params, cut, name) for name in ("loss_scale", "skipped_step"))
    x, present = cut.centres(), scale["count"] > 0
    xs, ys = extremes(x, scale["min"], scale["max"], present)
    at = (skipped["max"] > 0) & present
    marks = _line("skipped step", x[at], scale["min"][at]) | {"mode": "markers"}
    line = _line("loss scale", xs, ys) | {"line": {"shape": "hv"}}
    return _figure([line, marks], layout("loss scale", type="log"), cut.meta())


def step_time(run: RunReader, params: Params) -> dict[str, Any]:
    """The figure `step_time` of docs/api.md."""
    cut = grid_of(run, params, merged=1)
    found = series_columns(run, params, cut, "step_time_s")
    present, x = found["count"] > found["nonfinite_count"], cut.centres()
    lines = [
        _line(name, x[present], found[column][present] * MS)
        for name, column in (("slowest rank", "max"), ("fastest rank", "min"))
    ]
    return _figure(lines, layout("ms", rangemode="tozero"), cut.meta())


def tensor(run: RunReader, params: Params) -> dict[str, Any]:
    """The figure `tensor` of docs/api.md."""
    names = run.names()
    assert params.tensor is not None, "the API asks for a tensor"
    entry = names.tensors.entries[params.tensor]
    cut = grid_of(run, params)
    wanted = ("call_count", "amax", "nan_count", "inf_count", "full_numel", "amin")
    known = [name for name in wanted if name in names.fill[RANGES]]
    block = run.slice(RANGES, params.ranks, cut.level, cut.start, cut.stop, known, np.array([params.tensor]))
    found = {name: values[0] for name, values in to_grid(block, cut, names.rules[RANGES]).items()}
    x = cut.centres()
    seen = (found["call_count"] > 0) & (found["amax"] > 0)
    bad = found["nan_count"] + found["inf_count"] > 0
    full = (found.get("full_numel", 0 * x) > 0) & np.isfinite(found.get("amin", x))
    limits = limits_of(entry.dtype)
    lines = [
        _line("amax", x[seen], found["amax"][seen]),
        _line("amin", x[full], found.get("amin", x)[full]) | {"mode": "markers"},
        _line("non-finite", x[bad], np.full(int(bad.sum()), limits.max_finite)) | {"mode": "markers"},
    ]
    scaled = entry.kind in ("grad_output", "grad") and any(run.ranks[rank].info.loss_scaled for rank in params.ranks)
    meta = cut.meta() | {
        "label": label(entry), "loss_scaled": scaled,
        "limits": {
            "dtype": entry.dtype, "max_finite": limits.max_finite, "smallest_normal": limits.smallest_normal,
            "smallest_subnormal": limits.smallest_subnormal,
        },
    }  # fmt: skip
    return _figure(lines, layout("magnitude", type="log"), meta)


def _line(name: str, x: Array, y: Array) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "name": name, "x": typed(x, "f8"), "y": typed(y, "f8")}


def _figure(data: list[dict[str, Any]], shape: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    return {"figure": {"data": data, "layout": shape}, "meta": meta}


LOSS = Figure("loss", "Loss", "The loss that was logged, mean of the ranks; every column's extremes are drawn.", loss)
LOSS_SCALE = Figure("loss_scale", "Loss scale", "The loss scale, with the steps that were skipped.", loss_scale)
STEP_TIME = Figure("step_time", "Step time", "Time between two optimizer steps, slowest and fastest rank.", step_time)
TENSOR = Figure("tensor", "Range of one tensor", "amax and amin over steps with the dtype's limits.", tensor)
