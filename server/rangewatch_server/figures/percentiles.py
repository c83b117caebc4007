"""One tensor over ranks: at each step the least headroom of any rank, the most, and what lies between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rangewatch_server.core import deadline
from rangewatch_server.figures import reading
from rangewatch_server.figures.base import Figure, Grid, Params, grid_of, label, layout, typed
from rangewatch_server.figures.differences import has_headroom, is_nonfinite
from rangewatch_server.figures.heatmap import Cells
from rangewatch_server.figures.heatmap_values import HEADROOM
from rangewatch_server.numerics.headroom import State

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader

Array = NDArray[Any]

PERCENTILES = {"least": 0, "10 %": 10, "median": 50, "90 %": 90, "most": 100}


def build(run: RunReader, params: Params) -> dict[str, Any]:
    """The figure `percentiles` of docs/api.md."""
    assert params.tensor is not None, "the API asks for a tensor"
    cut = grid_of(run, params)
    cells = _by_rank(run, params, cut, params.tensor)
    has = has_headroom(cells)
    seen = has.any(axis=0)
    x, bits = cut.centres()[seen], np.where(has, cells.bits, np.nan)[:, seen]
    lines = np.nanpercentile(bits, list(PERCENTILES.values()), axis=0) if bits.size else np.zeros((len(PERCENTILES), 0))
    data = [_line(name, x, values) for name, values in zip(PERCENTILES, lines, strict=True)]
    return {"figure": {"data": data, "layout": layout("bits")}, "meta": cut.meta() | _facts(run, params, cut, cells)}


def _by_rank(run: RunReader, params: Params, cut: Grid, tensor: int) -> Cells:
    """(ranks, columns) of the one tensor."""
    shape = (len(params.ranks), cut.width)
    found = Cells(np.full(shape, np.inf, np.float32), np.full(shape, State.NOT_OBSERVED, np.uint8))
    for at, rank in enumerate(params.ranks if cut.width else ()):
        deadline.check()
        one = reading.read(run, (rank,), cut, np.array([tensor]), run.names().tensors, HEADROOM)
        found.bits[at], found.state[at] = one.bits[0], one.state[0]
    return found


def _facts(run: RunReader, params: Params, cut: Grid, cells: Cells) -> dict[str, Any]:
    assert params.tensor is not None, "the API asks for a tensor"
    entry = run.names().tensors.entries[params.tensor]
    observed = int((cells.state != State.NOT_OBSERVED).any(axis=1).sum())
    return {
        "label": label(entry), "ranks": len(params.ranks), "observed_ranks": observed,
        "nonfinite_steps": cut.centres()[is_nonfinite(cells).any(axis=0)].tolist(),
    }  # fmt: skip


def _line(name: str, x: Array, y: Array) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "name": name, "x": typed(x, "f8"), "y": typed(y, "f8")}


FIGURE = Figure(
    "percentiles", "Headroom over ranks", "One tensor's headroom on the ranks: least, 10 %, median, 90 % and most.",
    build,
)  # fmt: skip
