"""One tensor's exponents over steps: the share of its elements in each power of two, with the dtype's limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rangewatch.statistics.exponents import exponent_of
from rangewatch.wire.records import TensorEntry
from rangewatch_server.figures.base import Figure, FigureData, Grid, Params, grid_of, label, typed
from rangewatch_server.figures.heatmaps.heatmap import scale_meta
from rangewatch_server.figures.lines import to_grid
from rangewatch_server.numerics.headroom import limits_of
from rangewatch_server.numerics.pyramid import RANGES

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader

Array = NDArray[Any]

LEAST_LOG10 = -6.0  # the scale is fixed, from one element in a million to all, so that two runs compare by eye
MOST_MARKS = 200  # a lone step among thousands is drawn as wide as this part of the range, or nobody sees it
QUANTILES = {"low": 0.01, "median": 0.5, "high": 0.99}
NOT_RECORDED = "No histogram was recorded: attach(histograms=True) takes one with every full set."
NOT_HERE = "No histogram of this tensor in these steps: it comes with the full set, of tensors that are in host memory."


def build(run: RunReader, params: Params) -> FigureData:
    """The figure `exponents` of docs/api.md."""
    names = run.names()
    entries = names.tensors.entries
    cut = grid_of(run, params)
    bins = {exponent: name for name in names.fill[RANGES] if (exponent := exponent_of(name)) is not None}
    if not bins or params.tensor is None or not 0 <= params.tensor < len(entries):
        return _figure(cut, None, np.zeros((0, 0)), np.zeros(0), 0, NOT_RECORDED, {})
    known = [name for name in ("full_numel", "zero_count", "subnormal_count") if name in names.fill[RANGES]]
    wanted = [*known, *bins.values()]
    block = run.slice(RANGES, params.ranks, cut.level, cut.start, cut.stop, wanted, np.array([params.tensor]))
    columns = {name: values[0] for name, values in to_grid(block, cut, names.rules[RANGES]).items()}
    lowest = min(bins)
    counts = np.zeros((max(bins) - lowest + 1, cut.width))
    for exponent, name in bins.items():
        counts[exponent - lowest] = columns[name]
    return _drawn(cut, entries[params.tensor], counts, lowest, {name: columns[name] for name in known})


def _drawn(cut: Grid, entry: TensorEntry, counts: Array, lowest: int, full: dict[str, Array]) -> FigureData:
    """`counts`: (exponents from `lowest`, columns of the grid)."""
    measured = counts.any(axis=0)
    if "full_numel" in full and "zero_count" in full:
        measured = measured | ((full["full_numel"] > 0) & (full["zero_count"] == full["full_numel"]))
    at = np.flatnonzero(measured)
    filled = np.flatnonzero(counts.any(axis=1))
    first, last = (int(filled[0]), int(filled[-1]) + 1) if filled.size else (0, 0)
    shown = counts[first:last, at]
    empty = "" if at.size else NOT_HERE
    meta = _measured(cut, at, shown, lowest + first, {name: values[at] for name, values in full.items()})
    edges, source = column_edges((cut.first + at) * cut.per, cut)
    z = np.full((len(shown), len(source)), np.nan, np.float32)
    z[:, source >= 0] = shares_log10(shown)[:, source[source >= 0]]
    return _figure(cut, entry, z, edges, lowest + first, empty, meta)


def shares_log10(counts: Array) -> Array:
    """(exponents, columns) log10 of each bin's share of its column, at least `LEAST_LOG10`; NaN for an empty bin."""
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.log10(counts / counts.sum(axis=0))
    return np.where(counts > 0, np.maximum(shares, LEAST_LOG10), np.nan).astype(np.float32)


def quantile_exponents(counts: Array, lowest: int, quantile: float) -> Array:
    """(columns,) the exponent below or at which that part of a column's elements lies; NaN for an empty column."""
    sums = np.cumsum(counts, axis=0)
    if not len(sums):
        return np.full(counts.shape[1], np.nan)
    reached = (sums >= quantile * sums[-1]).argmax(axis=0)
    return np.where(sums[-1] > 0, lowest + reached, np.nan)


def column_edges(starts: Array, cut: Grid) -> tuple[Array, Array]:
    """Where the drawn columns begin and end, (n + 1,), and which measured one each shows, (n,), -1 for a hole.

    What is measured every 100 steps is drawn until the next time it is; holes are where that is longer than usual.
    """
    if not starts.size:
        return np.zeros(0), np.zeros(0, np.int64)
    slack = cut.per if cut.per > 1 else 0  # every 10 steps in columns of 8: one and two columns apart in turn
    median = float(np.median(np.diff(starts))) if len(starts) > 1 else 0.0
    usual = max(float(cut.per), median + slack, (cut.stop - cut.start) / MOST_MARKS)
    ends = np.minimum(starts + usual, np.append(starts[1:], max(cut.stop, starts[-1] + cut.per)))
    is_hole = np.append(ends[:-1] < starts[1:], False)
    edges = np.stack([starts, ends], axis=1)[np.stack([np.full(len(starts), True), is_hole], axis=1)]
    source = np.stack([np.arange(len(starts)), np.full(len(starts), -1)], axis=1)
    shown = source[np.stack([np.full(len(starts), True), is_hole], axis=1)]
    return np.append(edges, ends[-1]) - 0.5, shown


def _measured(cut: Grid, at: Array, counts: Array, lowest: int, full: dict[str, Array]) -> dict[str, Any]:
    quantiles = {name: quantile_exponents(counts, lowest, part) for name, part in QUANTILES.items()}
    numel = full.get("full_numel", np.zeros(len(at)))
    with np.errstate(divide="ignore", invalid="ignore"):
        fractions = {
            f"{name}_fraction": np.where(numel > 0, full.get(f"{name}_count", np.nan) / numel, np.nan)
            for name in ("zero", "subnormal")
        }
    steps = typed((cut.first + at) * cut.per, "f8")
    return {"steps": steps} | {name: typed(values, "f8") for name, values in (quantiles | fractions).items()}


def _figure(
    cut: Grid, entry: TensorEntry | None, z: Array, edges: Array, lowest: int, empty: str, measured: dict[str, Any]
) -> FigureData:
    limits = limits_of(entry.dtype) if entry else limits_of("")
    per = "one step" if cut.per == 1 else f"all elements of {cut.per} steps"
    meta = cut.meta() | {
        "note": f"each column: {per}", "empty": empty, "measured": measured,
        "statistic": scale_meta("share", "Share of the elements", "log10", "least share", LEAST_LOG10, 0),
        "label": label(entry) if entry else "",
        "limits": {
            "dtype": entry.dtype, "max_finite": limits.max_finite, "smallest_normal": limits.smallest_normal,
            "smallest_subnormal": limits.smallest_subnormal,
        } if entry else None,
    }  # fmt: skip
    cells = {"name": "share", "x": typed(edges, "f8"), "y0": lowest + 0.5, "dy": 1, "z": typed(z, "f4")}
    return [cells] if z.size else [], meta


FIGURE = Figure(
    name="exponents", title="Exponents of one tensor", build=build, needs_tensor=True,
    data="log10 of the share, a row an exponent; none when nothing was measured",
    help="The share of elements in each power of two over steps.",
)  # fmt: skip
