"""Rank by step: on each rank the worst of all tensors, or of those that are chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from rangewatch.wire.records import KINDS
from rangewatch_server.core import deadline
from rangewatch_server.figures import reading
from rangewatch_server.figures.base import Figure, Grid, Params, grid_of
from rangewatch_server.figures.heatmap import Cells, heatmap
from rangewatch_server.figures.heatmap_values import HEADROOM, Shown, named
from rangewatch_server.figures.layers import chosen, row_edges
from rangewatch_server.figures.rows import rank_row
from rangewatch_server.numerics.headroom import SATURATED_BITS, State
from rangewatch_server.numerics.pyramid import Block

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader

Array = NDArray[Any]

COLUMNS = ("observed", "bits", "nan_count", "inf_count")
MOST_CELLS = 1 << 23
"""Cells of tensors by steps by ranks that are read for one figure; more are read, and drawn, in coarser columns."""
LEAST_COLUMNS = 32


def build(run: RunReader, params: Params) -> dict[str, Any]:
    """The figure `timeline` of docs/api.md."""
    shown = named(params.statistic)
    if shown is HEADROOM and not params.q and params.tensor is None:
        cut, notes = grid_of(run, params), ""
        cells = _by_rank(run, params, cut)
    else:
        cut, cells, notes = _of_tensors(run, params, shown)
    starts = row_edges(len(params.ranks), params.rows)
    groups = np.split(np.array(params.ranks, np.int64), starts[1:]) if params.ranks else []
    found = heatmap(cells.pooled(starts, 0), [rank_row(group) for group in groups], cut, shown)
    found["meta"]["note"] = "; ".join(each for each in (found["meta"]["note"], notes) if each)
    return found


def _of_tensors(run: RunReader, params: Params, shown: Shown) -> tuple[Grid, Cells, str]:
    """The worst of the chosen tensors on each rank."""
    tensors = run.names().tensors
    order = chosen(tensors, params.kinds, params.q)
    if params.tensor is not None:
        order = order[order == params.tensor]
    room = MOST_CELLS // max(1, len(order) * len(params.ranks))
    cut = grid_of(run, structs.replace(params, columns=min(params.columns, max(room, LEAST_COLUMNS))))
    found = Cells(
        np.full((len(params.ranks), cut.width), np.inf, np.float32),
        np.full((len(params.ranks), cut.width), State.NOT_OBSERVED, np.uint8),
    )
    for place, rank in enumerate(params.ranks if len(order) and cut.width else ()):
        deadline.check()
        one = reading.read(run, (rank,), cut, order, tensors, shown).pooled(np.zeros(1, np.int64), 0)
        found.bits[place], found.state[place] = one.bits[0], one.state[0]
        reading.mark_stale(run, (rank,), cut, found.state[place : place + 1])
    notes = [reading.note(run, params.ranks[:1], cut, len(order), shown)]
    if shown.is_full_set:
        found, when = reading.held(found, cut.per)
        notes.append(when)
    return cut, found, "; ".join(each for each in notes if each)


def summary_cells(block: Block) -> Cells:
    """One row: the worst of the kinds in a block of summaries, per column."""
    return _cells({name: values[None] for name, values in block.columns.items()}, (1, block.width))


def _cells(columns: dict[str, Array], shape: tuple[int, int]) -> Cells:
    """The worst of the kinds: `columns[name]` is (ranks, kinds, n), perhaps without any kind; cells of `shape`."""
    if not columns or not columns["bits"].shape[1]:
        return Cells(np.full(shape, np.inf, np.float32), np.full(shape, State.NOT_OBSERVED, np.uint8))
    bits = columns["bits"].min(axis=1).astype(np.float32)
    state = np.where(bits < SATURATED_BITS, np.uint8(State.SATURATED), np.uint8(State.VALUE))
    state[np.isposinf(bits)] = State.ZERO
    state[columns["inf_count"].sum(axis=1) > 0] = State.INF
    state[columns["nan_count"].sum(axis=1) > 0] = State.NAN
    state[columns["observed"].sum(axis=1) == 0] = State.NOT_OBSERVED
    return Cells(bits, state)


def _by_rank(run: RunReader, params: Params, cut: Grid) -> Cells:
    """A row for each rank of `params`, pooled to the grid's columns."""
    kinds = [KINDS.index(kind) for kind in sorted(params.kinds, key=KINDS.index)] or list(range(len(KINDS)))
    block = run.by_rank(params.ranks, cut.level, cut.start, cut.stop, COLUMNS)
    shape = (len(params.ranks), len(KINDS), block.width)
    columns = {name: values.reshape(shape)[:, kinds] for name, values in block.columns.items()}
    cells = _cells(columns, (shape[0], shape[2])).pooled(cut.edges(block.first, block.width), 1)
    for place, rank in enumerate(params.ranks):
        reading.mark_stale(run, (rank,), cut, cells.state[place : place + 1])
    return cells


FIGURE = Figure("timeline", "Least headroom by rank", "The least headroom in bits of any tensor, per rank.", build)
