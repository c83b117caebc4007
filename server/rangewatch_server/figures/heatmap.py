"""Heatmaps of headroom: cells to pooled rows and columns, states apart from the scale."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rangewatch_server import headroom
from rangewatch_server.figures.base import Grid, layout, typed
from rangewatch_server.headroom import STATE_NAMES, State

Array = NDArray[Any]

SCALE_BITS = 16.0  # the scale is fixed, never stretched to the data, so that two runs compare by eye
# The page paints these by theme; the figure carries the light ones, so that it reads alone too (shared look: bits).
STOPS_BITS = (0, 1, 2, 4, 6.4, 9.6, 16)
LIGHT = ("#7a0403", "#c22403", "#f66b19", "#fdb863", "#f3e2c0", "#d9e6ee", "#a9c7dd")


class Cells:
    """A rectangle of cells: `bits` (r, n) float32, +Inf for none; `state` (r, n) uint8."""

    def __init__(self, bits: Array, state: Array) -> None:
        self.bits = bits
        self.state = state

    def pooled(self, edges: Array, axis: int) -> Cells:
        """The worst of each group along an axis."""
        if self.bits.shape[axis] == len(edges) or not self.bits.size:
            return self
        return Cells(*headroom.pool(self.bits, self.state, edges, axis))


def heatmap(cells: Cells, rows: list[dict[str, Any]], grid: Grid) -> dict[str, Any]:
    """The figure and meta of docs/api.md for cells already pooled to `grid`'s columns."""
    shown = (cells.state == State.VALUE) | (cells.state == State.SATURATED)
    z = np.where(shown, np.minimum(cells.bits, SCALE_BITS), np.nan).astype(np.float32)
    bad = (cells.state == State.INF) | (cells.state == State.NAN)
    trace = {
        "type": "heatmap", "name": "headroom", "x0": grid.first * grid.per + (grid.per - 1) / 2, "dx": grid.per,
        "z": typed(z, "f4"), "zmin": 0, "zmax": SCALE_BITS, "zauto": False, "showscale": False, "hoverongaps": True,
        "colorscale": [[bits / SCALE_BITS, colour] for bits, colour in zip(STOPS_BITS, LIGHT, strict=True)],
    }  # fmt: skip
    meta = grid.meta() | {
        "rows": rows,
        "states": typed(cells.state, "u1"),
        "state_names": STATE_NAMES,
        "nonfinite_columns": np.flatnonzero(bad.any(axis=0)).tolist() if bad.size else [],
    }
    return {"figure": {"data": [trace], "layout": layout(autorange="reversed")}, "meta": meta}
