"""The load of a router's experts over steps, and the largest of each router: tokens over the mean of all experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from rangewatch.wire.events import Routers
from rangewatch_server.figures.base import Figure, FigureData, Grid, Params, grid_of, label, typed
from rangewatch_server.figures.heatmaps.rows import row_edges
from rangewatch_server.figures.lines import to_grid
from rangewatch_server.numerics.headroom import STATE_NAMES, State
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.query.routers import Loads, RouterRows, columns_of, is_counted, loads_of, routers_of

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader

Array = NDArray[Any]

ENDS = (-4.0, 4.0)
"""Of the scale, log2 of the load over the mean: from a sixteenth of it to sixteen times."""

NO_TOKENS = -16.0
"""What stands for an expert without a token; any other is above it."""

MOST_CELLS = 1 << 24
"""Counts that are read at once: of many routers there are fewer columns."""

NO_ROUTERS = "No router of experts was recorded: those of known models are, others by attach(routers=[...])."


def build(run: RunReader, params: Params) -> FigureData:
    """The figure `experts` of docs/api.md."""
    chosen = [each for each in _routers(run) if each.tensor == params.tensor]
    cut = grid_of(run, params)
    if not chosen:
        return _figure(cut, np.zeros((0, cut.width)), [], NO_ROUTERS)
    (loads,) = _loads(run, params, cut, chosen)
    values = log2_of(loads.ratio)
    starts = row_edges(len(values), params.rows)
    shown = _furthest(values, starts)
    ends = [*starts[1:].tolist(), len(values)]
    rows = [
        _row(f"expert {first}" if last - first == 1 else f"experts {first} to {last - 1}", last - first)
        for first, last in zip(starts.tolist(), ends, strict=True)
    ]
    data, meta = _figure(cut, shown, rows, "" if loads.routed.any() else "No token was routed in these steps.")
    entry = run.names().tensors.entries[chosen[0].tensor]
    return data, meta | {
        "label": label(entry), "experts": chosen[0].router.experts, "top_k": chosen[0].router.top_k,
        "measured": _measured(cut, loads, sees_drops=chosen[0].router.sees_drops),
    }  # fmt: skip


def build_routers(run: RunReader, params: Params) -> FigureData:
    """The figure `routers` of docs/api.md."""
    routers = _routers(run)
    cells = sum(each.router.experts for each in routers)
    cut = grid_of(run, structs.replace(params, columns=min(params.columns, max(64, MOST_CELLS // max(1, cells)))))
    if not routers:
        return _figure(cut, np.zeros((0, cut.width)), [], NO_ROUTERS)
    values = np.stack([log2_of(each.largest) for each in _loads(run, params, cut, routers)])
    starts = row_edges(len(values), params.rows)
    ends = [*starts[1:].tolist(), len(values)]
    rows = []
    for first, last in zip(starts.tolist(), ends, strict=True):
        name = routers[first].router.fqn or "(model)"
        text = name if last - first == 1 else f"{name} to {routers[last - 1].router.fqn}"
        rows.append(_row(text, last - first, routers[first].tensor if last - first == 1 else None))
    return _figure(cut, _furthest(values, starts), rows, "")


def log2_of(ratio: Array) -> Array:
    """float32 log2 of loads over the mean: `NO_TOKENS` for none, NaN where there is no mean."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.isnan(ratio), np.nan, np.maximum(np.log2(ratio), NO_TOKENS)).astype(np.float32)


def _routers(run: RunReader) -> list[RouterRows]:
    names = run.names()
    if not is_counted(names.fill):
        return []
    details = (event.read(Routers) for event in run.newest_events([Routers.KIND]))
    return routers_of(names.tensors, [each for each in details if each is not None])


def _loads(run: RunReader, params: Params, cut: Grid, routers: list[RouterRows]) -> list[Loads]:
    names = run.names()
    rows = np.unique([each.tensor for each in routers])
    wanted = columns_of(routers, names.fill)
    block = run.stored(RANGES, params.ranks, cut.level, cut.start, cut.stop, wanted, rows)
    columns = to_grid(block, cut, names.rules[RANGES])
    return [loads_of(each, block, columns) for each in routers]


def _furthest(values: Array, starts: Array) -> Array:
    """(rows, n) of each group of neighbours the one furthest from the mean."""
    if len(starts) == len(values):
        return values
    size = np.where(np.isnan(values), -1.0, np.abs(values))
    groups = np.split(np.arange(len(values)), starts[1:])
    picked = [group[size[group].argmax(axis=0)] for group in groups]
    return np.stack([values[each, np.arange(values.shape[1])] for each in picked])


def _measured(cut: Grid, loads: Loads, *, sees_drops: bool) -> dict[str, Any]:
    """Of the columns in which tokens were routed: `steps`, `tokens`, `largest` load over the mean, `dropped_fraction`
    of the places that tokens asked for, NaN where drops cannot be seen."""
    at = np.flatnonzero(loads.routed > 0)
    given, dropped = loads.tokens.sum(axis=0)[at], loads.dropped[at]
    with np.errstate(divide="ignore", invalid="ignore"):
        fraction = dropped / (given + dropped) if sees_drops else np.full(len(at), np.nan)
    columns = {
        "steps": (cut.first + at) * cut.per, "tokens": loads.routed[at], "largest": loads.largest[at],
        "dropped_fraction": fraction,
    }  # fmt: skip
    return {name: typed(values, "f8") for name, values in columns.items()}


def _row(text: str, count: int, tensor: int | None = None) -> dict[str, Any]:
    return {"label": text, "count": count, "tensor": tensor, "tensors": None if tensor is None else [tensor, tensor]}


def _figure(cut: Grid, values: Array, rows: list[dict[str, Any]], empty: str) -> FigureData:
    meta = cut.meta()
    note = "each column: one step" if cut.per == 1 else f"each column: all tokens of {cut.per} steps"
    states = np.where(np.isnan(values), State.NOT_OBSERVED, State.VALUE).astype(np.uint8)
    meta |= {
        "note": note, "rows": rows, "states": typed(states, "u1"), "state_names": STATE_NAMES, "nonfinite_columns": [],
        "empty": empty,
        "statistic": {
            "name": "load", "title": "Load over the mean", "scale": "load", "worst": "furthest",
            "worst_title": "furthest from the mean", "is_full_set": False, "low": ENDS[0], "high": ENDS[1],
        },
    }  # fmt: skip
    return [{"name": "load over the mean", **cut.origin, "z": typed(values.astype(np.float32), "f4")}], meta


FIGURES = (
    Figure(
        name="experts", title="Load of the experts", build=build, needs_tensor=True,
        data="log2 of an expert's tokens over the mean of all experts, a row an expert; -16 for none",
        help="How a router of a mixture of experts spreads tokens over its experts.",
    ),
    Figure(
        name="routers", title="Largest load by router", build=build_routers,
        data="log2 of the largest load over the mean (1 + MaxVio), a row a router in call order",
        help="How far from even each router spreads tokens.",
    ),
)  # fmt: skip
