"""Rank by tensor: headroom of every tensor on every rank at one step, or the worst of several steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from rangewatch.records import TensorEntry
from rangewatch_server import pyramid
from rangewatch_server.figures.base import Figure, Grid, Params, grid_of, label
from rangewatch_server.figures.heatmap import Cells, heatmap
from rangewatch_server.figures.layers import COLUMNS, cells_of, chosen, group_label, row_edges
from rangewatch_server.headroom import State
from rangewatch_server.pyramid import RANGES, Block

if TYPE_CHECKING:
    from rangewatch_server.queries import RunReader

Array = NDArray[Any]

READ_COLUMNS = 64  # steps are read as at most so many columns, and then merged to one


def build(run: RunReader, params: Params) -> dict[str, Any]:
    """The figure `ranks` of docs/api.md: a row is a rank, a column a tensor in call order."""
    tensors = run.names().tensors
    order = chosen(tensors, params.kinds, params.q)
    rows, columns = row_edges(len(params.ranks), params.rows), row_edges(len(order), params.columns)
    cut = grid_of(run, structs.replace(params, columns=READ_COLUMNS))
    cells = _read(run, params.ranks, cut, order).pooled(columns, 1).pooled(rows, 0)
    per = int(columns[1]) if len(columns) > 1 else max(len(order), 1)
    found = heatmap(
        cells, [_row(group) for group in _groups(np.array(params.ranks), rows)], Grid(0, len(order), per, 0)
    )
    found["meta"] |= _steps(cut) | {"tensors": [_column(tensors.entries, group) for group in _groups(order, columns)]}
    return found


def _steps(cut: Grid) -> dict[str, Any]:
    """The part of `meta` about steps, all of which are one column's here."""
    steps = cut.stop - cut.start
    note = f"step {cut.start}" if steps == 1 else f"each cell: worst of {steps} steps"
    return structs.replace(cut, per=max(steps, 1)).meta() | {"columns": steps, "note": note}


def _read(run: RunReader, ranks: tuple[int, ...], cut: Grid, order: Array) -> Cells:
    """(ranks, tensors in that order)."""
    shape = (len(ranks), len(order))
    cells = Cells(np.full(shape, np.inf, np.float32), np.full(shape, State.NOT_OBSERVED, np.uint8))
    for at, rank in enumerate(ranks if len(order) and cut.width else ()):
        cells.bits[at], cells.state[at] = _rank_cells(run, rank, cut, order)
    return cells


def _rank_cells(run: RunReader, rank: int, cut: Grid, order: Array) -> tuple[Array, Array]:
    rows = np.sort(order)
    block = run.slice(RANGES, [rank], cut.level, cut.start, cut.stop, COLUMNS, rows)
    whole = pyramid.reduce_axis(block.columns, run.names().rules[RANGES], 1)
    one = Block(cut.level, 0, rows, {name: values[:, None] for name, values in whole.items()})
    cells, position = cells_of(one, run.names().tensors), np.searchsorted(rows, order)
    state = cells.state[position, 0]
    if (state == State.NOT_OBSERVED).all() and _is_stale(run, rank, cut.start):
        state = np.full_like(state, State.STALE)
    return cells.bits[position, 0], state


def _is_stale(run: RunReader, rank: int, start: int) -> bool:
    silent = run.silent_since(rank)
    return silent is not None and start > silent


def _groups(values: Array, edges: Array) -> list[Array]:
    return np.split(values, edges[1:]) if len(values) else []


def _row(group: Array) -> dict[str, Any]:
    single, first = len(group) == 1, int(group[0])
    name = f"rank {first}" if single else f"ranks {first}-{group[-1]}"
    return {"label": name, "count": len(group), "tensor": None, "tensors": None, "rank": first if single else None}


def _column(entries: list[TensorEntry], group: Array) -> dict[str, Any]:
    first, last = int(group[0]), int(group[-1])
    single = len(group) == 1
    return {
        "label": label(entries[first]) if single else group_label([entries[each].fqn for each in group]),
        "count": len(group), "tensor": first if single else None, "tensors": [first, last],
    }  # fmt: skip


FIGURE = Figure("ranks", "Headroom by rank and tensor", "Each tensor on each rank at one step, in call order.", build)
