"""Heatmaps: cells to pooled rows and columns, states apart from the scale."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rangewatch_server.figures.base import Grid, layout, typed
from rangewatch_server.figures.heatmap_values import HEADROOM, Shown
from rangewatch_server.numerics import headroom
from rangewatch_server.numerics.headroom import STATE_NAMES, State

Array = NDArray[Any]

SCALE_BITS = 16.0  # the scale is fixed, never stretched to the data, so that two runs compare by eye
# The page paints these by theme; the figure carries the light ones, so that it reads alone too (shared look: bits).
STOPS_BITS = (0, 1, 2, 4, 6.4, 9.6, 16)
LIGHT = ("#7a0403", "#c22403", "#f66b19", "#fdb863", "#f3e2c0", "#d9e6ee", "#a9c7dd")
SEQUENTIAL = ("#eef2f4", "#c9dde6", "#93bfd1", "#5a97b5", "#3a6d98", "#2f4776", "#231d4f")  # of magnitudes and shares


class Cells:
    """A rectangle of cells: `bits` (r, n) float32 scores, the least is the worst, of which headroom in bits is one,
    with +Inf for none; `state` (r, n) uint8."""

    def __init__(self, bits: Array, state: Array) -> None:
        self.bits = bits
        self.state = state

    def pooled(self, edges: Array, axis: int) -> Cells:
        """The worst of each group along an axis."""
        if self.bits.shape[axis] == len(edges) or not self.bits.size:
            return self
        return Cells(*headroom.pool(self.bits, self.state, edges, axis))

    def taken(self, places: Array, axis: int) -> Cells:
        """These rows (axis 0) or columns (axis 1) in this order."""
        return Cells(np.take(self.bits, places, axis), np.take(self.state, places, axis))

    def worst_with(self, other: Cells) -> Cells:
        """The worse of two rectangles, cell by cell."""
        state = headroom.BY_SEVERITY[np.maximum(headroom.SEVERITY[self.state], headroom.SEVERITY[other.state])]
        return Cells(np.fmin(self.bits, other.bits), state)


def heatmap(cells: Cells, rows: list[dict[str, Any]], grid: Grid, shown: Shown = HEADROOM) -> dict[str, Any]:
    """The figure and meta of docs/api.md for cells already pooled to `grid`'s columns."""
    bad = (cells.state == State.INF) | (cells.state == State.NAN)
    low, high = shown.ends
    trace = {
        "type": "heatmap", "name": shown.title.lower(), "x0": grid.first * grid.per + (grid.per - 1) / 2,
        "dx": grid.per, "z": typed(values(cells, shown), "f4"), "zmin": low, "zmax": high, "zauto": False,
        "showscale": False, "hoverongaps": True, "colorscale": _colours(shown),
    }  # fmt: skip
    meta = grid.meta() | {
        "rows": rows,
        "states": typed(cells.state, "u1"),
        "state_names": STATE_NAMES,
        "nonfinite_columns": np.flatnonzero(bad.any(axis=0)).tolist() if bad.size else [],
        "statistic": shown.meta(),
    }
    return {"figure": {"data": [trace], "layout": layout(autorange="reversed")}, "meta": meta}


def values(cells: Cells, shown: Shown) -> Array:
    """(r, n) float32 on the scale of what is shown; NaN where a state is shown in its place, or nothing was measured.

    A count of what is not finite is known also where the state says that there is some.
    """
    is_there = (cells.state == State.VALUE) | (cells.state == State.SATURATED)
    if shown.scale == "count":
        is_there |= (cells.state == State.INF) | (cells.state == State.NAN)
    found = np.where(is_there & np.isfinite(cells.bits), shown.sign * cells.bits, np.nan)
    return np.minimum(found, SCALE_BITS if shown.scale == "bits" else np.inf).astype(np.float32)


def _colours(shown: Shown) -> list[list[Any]]:
    if shown.scale == "bits":
        return [[bits / SCALE_BITS, colour] for bits, colour in zip(STOPS_BITS, LIGHT, strict=True)]
    return [[at / (len(SEQUENTIAL) - 1), colour] for at, colour in enumerate(SEQUENTIAL)]
