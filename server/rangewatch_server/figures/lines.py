"""Lines over steps: loss, loss scale, step time, any series, one tensor's magnitudes, and its headroom over ranks.

Where a column holds several steps, a line gets both its smallest and its largest value, so a spike of one step is drawn
at every zoom.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rangewatch_server.core import deadline
from rangewatch_server.figures.base import Figure, FigureData, Grid, Params, grid_of, label, line
from rangewatch_server.figures.heatmaps import heatmap
from rangewatch_server.figures.heatmaps.heatmap import Cells
from rangewatch_server.numerics.headroom import State, limits_of
from rangewatch_server.numerics.pyramid import AMAX_STEP, NO_STEP, NONFINITE_STEP, RANGES, SERIES_PART, Block

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
    return {name: _reduced(values, edges, rules[name], block.columns) for name, values in block.columns.items()}


def _reduced(values: Array, edges: Array, rule: str, columns: dict[str, Array]) -> Array:
    if rule == "step_of_amax":
        amax = columns["amax"]
        column = np.searchsorted(edges, np.arange(amax.shape[1]), side="right") - 1
        values = np.where(amax == np.maximum.reduceat(amax, edges, axis=1)[:, column], values, NO_STEP)
        return np.minimum.reduceat(values, edges, axis=1)
    ufunc = {"max": np.maximum, "min": np.minimum, "sum": np.add}[rule]
    return ufunc.reduceat(values.astype(np.float64, copy=False), edges, axis=1)


def extremes(x: Array, low: Array, high: Array, present: Array) -> tuple[Array, Array]:
    """Points of a line through each column's smallest and largest value; one point where they are equal."""
    same = low == high
    points = np.stack([low, high], axis=1)
    keep = np.stack([present, present & ~same], axis=1)
    return np.repeat(x[:, None], 2, axis=1)[keep], points[keep]


def loss(run: RunReader, params: Params) -> FigureData:
    """The figure `loss` of docs/api.md."""
    return logged(run, params, "loss")


def logged(run: RunReader, params: Params, name: str) -> FigureData:
    """One series: the mean of the ranks at a step, the extremes of several."""
    cut = grid_of(run, params, merged=1)
    columns = series_columns(run, params, cut, name)
    finite = columns["count"] - columns["nonfinite_count"]
    x = cut.centres()
    if cut.per == 1:
        shown = finite > 0
        xs, ys = x[shown], columns["sum"][shown] / finite[shown]
    else:
        xs, ys = extremes(x, columns["min"], columns["max"], finite > 0)
    bad = x[columns["nonfinite_count"] > 0]
    return [line(name, xs, ys)], cut.meta() | {"nonfinite_steps": bad.tolist()}


def series(run: RunReader, params: Params) -> FigureData:
    """The figure `series` of docs/api.md: any series that was recorded, such as a learning rate that is logged."""
    data, meta = logged(run, params, params.q)
    is_known = params.q in run.names().series
    return data, meta | {"empty": None if is_known else "no series of this name was recorded"}


def loss_scale(run: RunReader, params: Params) -> FigureData:
    """The figure `loss_scale` of docs/api.md."""
    cut = grid_of(run, params, merged=1)
    scale, skipped = (series_columns(run, params, cut, name) for name in ("loss_scale", "skipped_step"))
    x, present = cut.centres(), scale["count"] > 0
    xs, ys = extremes(x, scale["min"], scale["max"], present)
    at = (skipped["max"] > 0) & present
    skips = line("skipped step", x[at], scale["min"][at])
    return [line("loss scale", xs, ys), skips], cut.meta()


def step_time(run: RunReader, params: Params) -> FigureData:
    """The figure `step_time` of docs/api.md."""
    cut = grid_of(run, params, merged=1)
    columns = series_columns(run, params, cut, "step_time_s")
    present, x = columns["count"] > columns["nonfinite_count"], cut.centres()
    lines = [
        line(name, x[present], columns[column][present] * MS)
        for name, column in (("slowest rank", "max"), ("fastest rank", "min"))
    ]
    return lines, cut.meta()


def tensor(run: RunReader, params: Params) -> FigureData:
    """The figure `tensor` of docs/api.md."""
    names = run.names()
    assert params.tensor is not None, "the API asks for a tensor"
    entry = names.tensors.entries[params.tensor]
    cut = grid_of(run, params)
    wanted = ["call_count", "amax", "nan_count", "inf_count", "full_numel", "amin"]
    wanted += [AMAX_STEP, NONFINITE_STEP] if cut.per > 1 else []
    known = [name for name in wanted if name in names.fill[RANGES]]
    block = run.slice(RANGES, params.ranks, cut.level, cut.start, cut.stop, known, np.array([params.tensor]))
    columns = {name: values[0] for name, values in to_grid(block, cut, names.rules[RANGES]).items()}
    x = cut.centres()
    seen = (columns["call_count"] > 0) & (columns["amax"] > 0)
    bad = columns["nan_count"] + columns["inf_count"] > 0
    full = (columns.get("full_numel", 0 * x) > 0) & np.isfinite(columns.get("amin", x))
    limits = limits_of(entry.dtype)
    lines = [
        line("amax", x[seen], columns["amax"][seen]),
        line("amin", x[full], columns.get("amin", x)[full]),
        line("non-finite", x[bad], np.full(int(bad.sum()), limits.max_finite)),
    ]
    scaled = entry.kind in ("grad_output", "grad") and run.is_loss_scaled(params.ranks)
    at = (columns[AMAX_STEP], columns[NONFINITE_STEP]) if cut.per > 1 else (x, x)
    meta = cut.meta() | {
        "label": label(entry), "loss_scaled": scaled,
        "steps": {"amax": _known(at[0][seen]), "non-finite": _known(at[1][bad])},
        "limits": {
            "dtype": entry.dtype, "max_finite": limits.max_finite, "smallest_normal": limits.smallest_normal,
            "smallest_subnormal": limits.smallest_subnormal,
        },
    }  # fmt: skip
    return lines, meta


def _known(steps: Array) -> list[int | None]:
    return [int(step) if step < NO_STEP else None for step in steps.tolist()]


BESIDE_EPS = {"below eps": "eps_count", "underflowed": "lost_count"}
PERCENT = 100.0


def moments(run: RunReader, params: Params) -> FigureData:
    """The figure `moments` of docs/api.md."""
    names = run.names()
    assert params.tensor is not None, "the API asks for a tensor"
    entry = names.tensors.entries[params.tensor]
    cut = grid_of(run, params)
    wanted = ("moved_count", *BESIDE_EPS.values())
    columns = dict.fromkeys(wanted, np.zeros(cut.width))
    if entry.kind == "exp_avg_sq" and set(wanted) <= set(names.fill[RANGES]):
        block = run.slice(RANGES, params.ranks, cut.level, cut.start, cut.stop, wanted, np.array([params.tensor]))
        columns = {name: values[0] for name, values in to_grid(block, cut, names.rules[RANGES]).items()}
    x, there = cut.centres(), columns["moved_count"] > 0
    data = [
        line(name, x[there], PERCENT * columns[count][there] / columns["moved_count"][there])
        for name, count in BESIDE_EPS.items()
    ]
    return data, cut.meta() | {"label": label(entry)}


PERCENTILES = {"least": 0, "10 %": 10, "median": 50, "90 %": 90, "most": 100}


def percentiles(run: RunReader, params: Params) -> FigureData:
    """The figure `percentiles` of docs/api.md."""
    assert params.tensor is not None, "the API asks for a tensor"
    cut = grid_of(run, params)
    cells = _tensor_by_rank(run, params, cut, params.tensor)
    has = cells.has_headroom
    seen = has.any(axis=0)
    x, bits = cut.centres()[seen], np.where(has, cells.bits, np.nan)[:, seen]
    lines = np.nanpercentile(bits, list(PERCENTILES.values()), axis=0) if bits.size else np.zeros((len(PERCENTILES), 0))
    data = [line(name, x, values) for name, values in zip(PERCENTILES, lines, strict=True)]
    return data, cut.meta() | _percentiles_meta(run, params, cut, cells)


def _tensor_by_rank(run: RunReader, params: Params, cut: Grid, tensor: int) -> Cells:
    """(ranks, columns) of the one tensor."""
    cells = Cells.unobserved(len(params.ranks), cut.width)
    for at, rank in enumerate(params.ranks if cut.width else ()):
        deadline.check()
        one = heatmap.read(run, (rank,), cut, np.array([tensor]))
        cells.bits[at], cells.state[at] = one.bits[0], one.state[0]
    return cells


def _percentiles_meta(run: RunReader, params: Params, cut: Grid, cells: Cells) -> dict[str, Any]:
    assert params.tensor is not None, "the API asks for a tensor"
    entry = run.names().tensors.entries[params.tensor]
    observed = int((cells.state != State.NOT_OBSERVED).any(axis=1).sum())
    return {
        "label": label(entry), "ranks": len(params.ranks), "observed_ranks": observed,
        "nonfinite_steps": cut.centres()[cells.is_nonfinite.any(axis=0)].tolist(),
    }  # fmt: skip


FIGURES = (
    Figure(
        name="loss", title="Loss", build=loss, data='"loss"',
        help="The loss that was logged, mean of the ranks; every column's extremes are drawn.",
    ),
    Figure(
        name="loss_scale", title="Loss scale", build=loss_scale, data='"loss scale", points "skipped step"',
        help="The loss scale, with the steps that were skipped.", scale="log2",
    ),
    Figure(
        name="step_time", title="Step time", build=step_time, data='"slowest rank", "fastest rank"', unit="ms",
        help="Time between two optimizer steps, slowest and fastest rank.",
    ),
    Figure(
        name="tensor", title="Range of one tensor", build=tensor, data='"amax", points "amin" and "non-finite"',
        help="amax and amin over steps with the dtype's limits.", scale="log2", needs_tensor=True,
    ),
    Figure(
        name="moments", title="Moments beside Adam's eps", build=moments, unit="%", needs_tensor=True,
        data='"below eps", "underflowed"',
        help="Of the elements of an `exp_avg_sq` that Adam moves: how many eps decides, and how many are zero by "
        "underflow. Of the ranks and steps of a column together.",
    ),
    Figure(
        name="series", title="One series", build=series, data="the series",
        help="A series by its name in `q`, mean of the ranks; extremes are drawn.",
    ),
    Figure(
        name="percentiles", title="Headroom over ranks", build=percentiles, unit="bits", needs_tensor=True,
        data='"least", "10 %", "median", "90 %", "most"',
        help="One tensor's headroom on the ranks: least, 10 %, median, 90 % and most.",
    ),
)  # fmt: skip
