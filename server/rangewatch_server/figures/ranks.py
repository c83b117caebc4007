"""Ranks: each tensor on every rank at one step (`ranks`), and the worst of all tensors on every rank over steps
(`timeline`); of headroom, or another statistic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from rangewatch.statistics import HEADROOM, Derived
from rangewatch.wire.records import KINDS
from rangewatch_server.core import deadline
from rangewatch_server.figures import heatmap, quantities
from rangewatch_server.figures.base import Figure, FigureData, Grid, Params, grid_of
from rangewatch_server.figures.heatmap import Cells
from rangewatch_server.figures.module_tree import tree
from rangewatch_server.figures.name_filter import chosen
from rangewatch_server.figures.rank_rows import rank_rows
from rangewatch_server.figures.rows import arranged, grouped, row, row_edges
from rangewatch_server.numerics.headroom import SATURATED_BITS, State
from rangewatch_server.numerics.pyramid import Block

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader

Array = NDArray[Any]

READ_COLUMNS = 64  # steps are read as at most so many columns, and then merged to one
MOST_CELLS = 1 << 24
"""Cells of tensors by steps by ranks that are read for `ranks`; more are read in fewer columns of steps."""
MOST_TIMELINE_CELLS = 1 << 23
"""The same of `timeline`, which is then drawn in coarser columns."""
LEAST_COLUMNS = 32
SUMMARY = ("observed", "bits", "nan_count", "inf_count")


def ranks(run: RunReader, params: Params) -> FigureData:
    """The figure `ranks` of docs/api.md: a row is a rank, a column a tensor or a closed module."""
    tensors, statistic = run.names().tensors, quantities.named(params.statistic)
    order = quantities.rows_of(tensors, chosen(tensors, params.kinds, params.q), statistic)
    wide = MOST_CELLS // max(1, len(order) * len(params.ranks))
    cut = grid_of(run, structs.replace(params, columns=max(1, min(READ_COLUMNS, wide))))
    all_cells = _tensors_by_rank(run, params.ranks, cut, order, statistic)
    units, cells = arranged(tensors, params, order, all_cells, 1)
    rows, columns = rank_rows(run, params), row_edges(len(units), params.columns)
    per = int(columns[1]) if len(columns) > 1 else max(len(units), 1)
    pooled = cells.pooled(columns, 1).taken(rows.order, 0).pooled(rows.starts, 0)
    data, meta = heatmap.figure(pooled, rows.meta, Grid(0, len(units), per, 0), statistic)
    named_columns = [row(tensors.entries, group, params.sort == "call") for group in grouped(units, columns)]
    meta |= _steps(cut) | {"tensors": named_columns, "units": len(units)}
    if params.tree:
        meta["modules"] = tree(tensors.entries, order, all_cells.transposed, statistic, params.tree)
    return data, meta


def _steps(cut: Grid) -> dict[str, Any]:
    """The part of `meta` about steps, all of which are one column's here."""
    steps = cut.stop - cut.start
    note = f"step {cut.start}" if steps == 1 else f"each cell: worst of {steps} steps"
    return structs.replace(cut, per=max(steps, 1)).meta() | {"columns": steps, "note": note}


def _tensors_by_rank(run: RunReader, ranks: tuple[int, ...], cut: Grid, order: Array, statistic: Derived) -> Cells:
    """(ranks, tensors in that order): the worst of all steps."""
    cells = Cells.unobserved(len(ranks), len(order))
    for at, rank in enumerate(ranks if len(order) and cut.width else ()):
        deadline.check()
        one = quantities.read(run, (rank,), cut, order, statistic).pooled(np.zeros(1, np.int64), 1)
        cells.bits[at], cells.state[at] = one.bits[:, 0], one.state[:, 0]
        silent = run.silent_since(rank)
        if silent is not None and cut.start > silent and (one.state == State.NOT_OBSERVED).all():
            cells.state[at] = State.STALE
    return cells


def timeline(run: RunReader, params: Params) -> FigureData:
    """The figure `timeline` of docs/api.md."""
    statistic = quantities.named(params.statistic)
    if statistic is HEADROOM and not params.q and params.tensor is None:
        cut = grid_of(run, params)
        cells, notes = _summaries_by_rank(run, params, cut), list[str]()
    else:
        cut, cells, notes = _of_tensors(run, params, statistic)
    rows = rank_rows(run, params)
    return heatmap.figure(cells.taken(rows.order, 0).pooled(rows.starts, 0), rows.meta, cut, statistic, *notes)


def _of_tensors(run: RunReader, params: Params, statistic: Derived) -> tuple[Grid, Cells, list[str]]:
    """The worst of the chosen tensors on each rank."""
    tensors = run.names().tensors
    order = quantities.rows_of(tensors, chosen(tensors, params.kinds, params.q), statistic)
    if params.tensor is not None:
        order = order[order == params.tensor]
    room = MOST_TIMELINE_CELLS // max(1, len(order) * len(params.ranks))
    cut = grid_of(run, structs.replace(params, columns=min(params.columns, max(room, LEAST_COLUMNS))))
    cells = Cells.unobserved(len(params.ranks), cut.width)
    for place, rank in enumerate(params.ranks if len(order) and cut.width else ()):
        deadline.check()
        one = quantities.read(run, (rank,), cut, order, statistic).pooled(np.zeros(1, np.int64), 0)
        cells.bits[place], cells.state[place] = one.bits[0], one.state[0]
        heatmap.mark_stale(run, (rank,), cut, cells.state[place : place + 1])
    notes = [quantities.note(statistic), heatmap.note(run, params.ranks[:1], cut, len(order), statistic)]
    if statistic.is_full_set:
        cells, when = heatmap.held(cells, cut.per)
        notes.append(when)
    return cut, cells, notes


def summary_cells(block: Block) -> Cells:
    """One row: the worst of the kinds in a block of summaries, per column."""
    return _worst_of_kinds({name: values[None] for name, values in block.columns.items()}, (1, block.width))


def _worst_of_kinds(columns: dict[str, Array], shape: tuple[int, int]) -> Cells:
    """The worst of the kinds: `columns[name]` is (ranks, kinds, n), perhaps without any kind; cells of `shape`."""
    if not columns or not columns["bits"].shape[1]:
        return Cells.unobserved(*shape)
    bits = columns["bits"].min(axis=1).astype(np.float32)
    state = np.where(bits < SATURATED_BITS, np.uint8(State.SATURATED), np.uint8(State.VALUE))
    state[np.isposinf(bits)] = State.ZERO
    state[columns["inf_count"].sum(axis=1) > 0] = State.INF
    state[columns["nan_count"].sum(axis=1) > 0] = State.NAN
    state[columns["observed"].sum(axis=1) == 0] = State.NOT_OBSERVED
    return Cells(bits, state)


def _summaries_by_rank(run: RunReader, params: Params, cut: Grid) -> Cells:
    """A row for each rank of `params`, pooled to the grid's columns."""
    kinds = [KINDS.index(kind) for kind in sorted(params.kinds, key=KINDS.index)] or list(range(len(KINDS)))
    block = run.by_rank(params.ranks, cut.level, cut.start, cut.stop, SUMMARY)
    shape = (len(params.ranks), len(KINDS), block.width)
    columns = {name: values.reshape(shape)[:, kinds] for name, values in block.columns.items()}
    cells = _worst_of_kinds(columns, (shape[0], shape[2])).pooled(cut.edges(block.first, block.width), 1)
    for place, rank in enumerate(params.ranks):
        heatmap.mark_stale(run, (rank,), cut, cells.state[place : place + 1])
    return cells


FIGURES = (
    Figure(
        name="timeline", title="Least headroom by rank", build=timeline,
        data="headroom or another `statistic`, a row a rank",
        help="The least headroom in bits of any tensor, per rank.",
    ),
    Figure(
        name="ranks", title="Headroom by rank and tensor", build=ranks,
        data="headroom or another `statistic`, a row a rank and a column a tensor",
        help="Each tensor on each rank at one step, in call order.",
    ),
)  # fmt: skip
