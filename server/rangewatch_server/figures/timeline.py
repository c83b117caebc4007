"""Rank by step: the least headroom of any tensor on each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rangewatch.records import KINDS
from rangewatch_server.figures.base import Figure, Grid, Params, grid
from rangewatch_server.figures.heatmap import Cells, heatmap
from rangewatch_server.figures.layers import mark_stale, row_edges
from rangewatch_server.headroom import SATURATED_BITS, State
from rangewatch_server.pyramid import SUMMARY, Block

if TYPE_CHECKING:
    from rangewatch_server.queries import RunReader

Array = NDArray[Any]

COLUMNS = ("observed", "bits", "nan_count", "inf_count")


def build(run: RunReader, params: Params) -> dict[str, Any]:
    """The figure `timeline` of docs/api.md."""
    cut = grid(params.start, params.stop, params.columns, run.ship_every)
    per_rank = [_rank_cells(run, params, cut, rank) for rank in params.ranks]
    starts = row_edges(len(params.ranks), params.rows)
    bits = np.concatenate([cells.bits for cells in per_rank] or [np.zeros((0, cut.width), np.float32)])
    state = np.concatenate([cells.state for cells in per_rank] or [np.zeros((0, cut.width), np.uint8)])
    groups = np.split(np.array(params.ranks, np.int64), starts[1:]) if params.ranks else []
    return heatmap(Cells(bits, state).pooled(starts, 0), [_row(group) for group in groups], cut)


def summary_cells(block: Block) -> Cells:
    """One row: the worst of the kinds in a block of summaries, per column."""
    if not len(block.rows):
        return Cells(
            np.full((1, block.width), np.inf, np.float32), np.full((1, block.width), State.NOT_OBSERVED, np.uint8)
        )
    bits = block.columns["bits"].min(axis=0, keepdims=True).astype(np.float32)
    state = np.where(bits < SATURATED_BITS, np.uint8(State.SATURATED), np.uint8(State.VALUE))
    state[np.isposinf(bits)] = State.ZERO
    state[block.columns["inf_count"].sum(axis=0, keepdims=True) > 0] = State.INF
    state[block.columns["nan_count"].sum(axis=0, keepdims=True) > 0] = State.NAN
    state[block.columns["observed"].sum(axis=0, keepdims=True) == 0] = State.NOT_OBSERVED
    return Cells(bits, state)


def _rank_cells(run: RunReader, params: Params, cut: Grid, rank: int) -> Cells:
    rows = np.array(sorted(KINDS.index(kind) for kind in params.kinds), np.int64) if params.kinds else None
    block = run.slice(SUMMARY, [rank], cut.level, cut.start, cut.stop, COLUMNS, rows)
    cells = summary_cells(block).pooled(cut.edges(block.first, block.width), 1)
    mark_stale(run, Params(start=params.start, stop=params.stop, ranks=(rank,)), cut, cells.state)
    return cells


def _row(group: Array) -> dict[str, Any]:
    single, first = len(group) == 1, int(group[0])
    name = f"rank {first}" if single else f"ranks {first}-{group[-1]}"
    return {"label": name, "count": len(group), "tensor": None, "tensors": None, "rank": first if single else None}


FIGURE = Figure("timeline", "Least headroom by rank", "The least headroom in bits of any tensor, per rank.", build)
