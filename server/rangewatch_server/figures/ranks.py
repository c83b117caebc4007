"""Rank by tensor: headroom, or another statistic, on every rank at one step, or the worst of several steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from rangewatch_server.core import deadline
from rangewatch_server.figures import reading
from rangewatch_server.figures.base import Figure, Grid, Params, grid_of
from rangewatch_server.figures.heatmap import Cells, heatmap
from rangewatch_server.figures.heatmap_values import Shown, named
from rangewatch_server.figures.layers import arranged, chosen, row_edges
from rangewatch_server.figures.module_tree import tree
from rangewatch_server.figures.rows import grouped, rank_row, row
from rangewatch_server.numerics.headroom import State

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader

Array = NDArray[Any]

READ_COLUMNS = 64  # steps are read as at most so many columns, and then merged to one
MOST_CELLS = 1 << 24
"""Cells of tensors by steps by ranks that are read for one figure; more are read in fewer columns of steps."""


def build(run: RunReader, params: Params) -> dict[str, Any]:
    """The figure `ranks` of docs/api.md: a row is a rank, a column a tensor or a closed module."""
    tensors, shown = run.names().tensors, named(params.statistic)
    order = chosen(tensors, params.kinds, params.q)
    wide = MOST_CELLS // max(1, len(order) * len(params.ranks))
    cut = grid_of(run, structs.replace(params, columns=max(1, min(READ_COLUMNS, wide))))
    all_cells = _read(run, params.ranks, cut, order, shown)
    of, cells = arranged(tensors, params, order, all_cells, 1)
    rows, columns = row_edges(len(params.ranks), params.rows), row_edges(len(of), params.columns)
    per = int(columns[1]) if len(columns) > 1 else max(len(of), 1)
    groups = np.split(np.array(params.ranks), rows[1:]) if params.ranks else []
    pooled = cells.pooled(columns, 1).pooled(rows, 0)
    found = heatmap(pooled, [rank_row(group) for group in groups], Grid(0, len(of), per, 0), shown)
    named_columns = [row(tensors.entries, group, params.sort == "call") for group in grouped(of, columns)]
    found["meta"] |= _steps(cut) | {"tensors": named_columns, "units": len(of)}
    if params.tree:
        by_tensor = Cells(all_cells.bits.T, all_cells.state.T)
        found["meta"]["modules"] = tree(tensors.entries, order, by_tensor, shown, params.tree)
    return found


def _steps(cut: Grid) -> dict[str, Any]:
    """The part of `meta` about steps, all of which are one column's here."""
    steps = cut.stop - cut.start
    note = f"step {cut.start}" if steps == 1 else f"each cell: worst of {steps} steps"
    return structs.replace(cut, per=max(steps, 1)).meta() | {"columns": steps, "note": note}


def _read(run: RunReader, ranks: tuple[int, ...], cut: Grid, order: Array, shown: Shown) -> Cells:
    """(ranks, tensors in that order)."""
    shape = (len(ranks), len(order))
    cells = Cells(np.full(shape, np.inf, np.float32), np.full(shape, State.NOT_OBSERVED, np.uint8))
    for at, rank in enumerate(ranks if len(order) and cut.width else ()):
        deadline.check()
        cells.bits[at], cells.state[at] = _rank_cells(run, rank, cut, order, shown)
    return cells


def _rank_cells(run: RunReader, rank: int, cut: Grid, order: Array, shown: Shown) -> tuple[Array, Array]:
    one = reading.read(run, (rank,), cut, order, run.names().tensors, shown).pooled(np.zeros(1, np.int64), 1)
    state = one.state[:, 0]
    if (state == State.NOT_OBSERVED).all() and _is_stale(run, rank, cut.start):
        state = np.full_like(state, State.STALE)
    return one.bits[:, 0], state


def _is_stale(run: RunReader, rank: int, start: int) -> bool:
    silent = run.silent_since(rank)
    return silent is not None and start > silent


FIGURE = Figure("ranks", "Headroom by rank and tensor", "Each tensor on each rank at one step, in call order.", build)
