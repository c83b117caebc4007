"""Ranks: each tensor on every rank at one step (`ranks`), and the worst of all tensors on every rank over steps
(`timeline`); of headroom, or another statistic.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from rangewatch.statistics import HEADROOM, Derived
from rangewatch.wire.records import KINDS
from rangewatch_server.core import deadline
from rangewatch_server.figures import quantities
from rangewatch_server.figures.base import Figure, FigureData, Grid, Params, grid_of
from rangewatch_server.figures.heatmaps import heatmap, places
from rangewatch_server.figures.heatmaps.heatmap import Cells
from rangewatch_server.figures.heatmaps.rank_rows import MANY_RANKS, odd_and_others, rank_rows
from rangewatch_server.figures.heatmaps.rows import arranged, grouped, row, row_edges
from rangewatch_server.figures.module_tree import tree
from rangewatch_server.figures.name_filter import chosen
from rangewatch_server.numerics.headroom import SATURATED_BITS, State
from rangewatch_server.numerics.outliers import robust_scores
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
MOST_PLACED = 64
"""Ranks of a row whose exact step is looked for; all tensors of each are read."""
NO_DIFFERENCE = {"fraction": 0.01}
"""By scale, what is no difference between ranks; of all others `NO_DIFFERENCE_BITS`."""
NO_DIFFERENCE_BITS = 0.5
SUMMARY = ("observed", "bits", "nan_count", "inf_count")


def ranks(run: RunReader, params: Params) -> FigureData:
    """The figure `ranks` of docs/api.md: a row is a rank, a column a tensor or a closed module."""
    tensors, statistic = run.names().tensors, quantities.named(params.statistic)
    order = quantities.rows_of(tensors, chosen(tensors, params.kinds, params.q), statistic)
    wide = MOST_CELLS // max(1, len(order) * len(params.ranks))
    cut = grid_of(run, structs.replace(params, columns=max(1, min(READ_COLUMNS, wide))))
    all_cells = _tensors_by_rank(run, params.ranks, cut, order, statistic)
    units, cells = arranged(tensors, params, order, all_cells, 1)
    columns = row_edges(len(units), params.columns)
    per = int(columns[1]) if len(columns) > 1 else max(len(units), 1)
    rows, shown, spread = _by_rank(run, cells.pooled(columns, 1), params, statistic)
    data, meta = heatmap.figure(shown, [meta for _, meta in rows], Grid(0, len(units), per, 0), statistic)
    named_columns = [row(tensors.entries, group, params.sort == "call") for group in grouped(units, columns)]
    meta |= _steps(cut) | {"tensors": named_columns, "units": len(units)}
    meta["note"] = "; ".join(each for each in (meta["note"], spread) if each)
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
    rows, shown, spread = _by_rank(run, cells, params, statistic)
    meta = [each for _, each in rows]
    if params.places and statistic is HEADROOM:
        order = chosen(run.names().tensors, params.kinds, params.q)
        tensors = order if params.tensor is None else order[order == params.tensor]
        members = [(ranks, tensors if len(ranks) <= MOST_PLACED else tensors[:0]) for ranks, _ in rows]
        places.add_steps(run, meta, shown, cut, members, params.places)
    return heatmap.figure(shown, meta, cut, statistic, *notes, spread)


def _by_rank(
    run: RunReader, cells: Cells, params: Params, statistic: Derived
) -> tuple[list[tuple[tuple[int, ...], dict[str, Any]]], Cells, str]:
    """Of each row its ranks and what it is called, its cells, and what is said of ranks that are merged.

    `cells`: (ranks, columns). Folded ranks, and of few ranks neighbours where there is no room, share a row, which has
    the worst of them. Of many, those that stand out somewhere have rows of their own, and the others are one, with
    their median.
    """
    if len(params.ranks) <= MANY_RANKS or params.fold or not cells.bits.size:
        rows = rank_rows(run, params)
        groups = np.split(np.array(params.ranks, np.int64)[rows.order], rows.starts[1:]) if rows.meta else []
        members = [tuple(each.tolist()) for each in groups]
        return list(zip(members, rows.meta, strict=True)), cells.taken(rows.order, 0).pooled(rows.starts, 0), ""
    odd, others, meta = odd_and_others(run, params.ranks, _oddness(cells, statistic), params.rows)
    ranks = [*((params.ranks[place],) for place in odd), tuple(params.ranks[place] for place in others)]
    shown, spread = _median_of(cells.taken(others, 0), statistic)
    merged = Cells(np.concatenate([cells.bits[odd], shown.bits]), np.concatenate([cells.state[odd], shown.state]))
    said = f"{meta[-1]['label']}: median{spread}; NaN and Inf of any of them"
    return list(zip(ranks, meta, strict=True)), merged, said


def _oddness(cells: Cells, statistic: Derived) -> Array:
    """(ranks,) robust score of how far each is below the others' median where it is furthest below; a NaN or Inf that
    most do not have is as far as can be."""
    value = np.where(cells.has_headroom, cells.bits, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where nothing is known the median is NaN
        below = np.nanmedian(value, axis=0) - value
        score = robust_scores(np.nanmax(below, axis=1), NO_DIFFERENCE.get(statistic.scale, NO_DIFFERENCE_BITS))
    alone = cells.is_nonfinite & (cells.is_nonfinite.mean(axis=0) < 0.5)
    began = np.where(alone.any(axis=1), alone.argmax(axis=1), alone.shape[1])
    return np.where(began < alone.shape[1], 1e9 * (1 + alone.shape[1] - began), score)


def _median_of(cells: Cells, statistic: Derived) -> tuple[Cells, str]:
    """One row: the median of those that have a value; NaN or Inf where any has, and the commonest state else; and the
    spread of all."""
    has = cells.has_headroom
    value = np.where(has, cells.bits, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        bits = np.nanmedian(value, axis=0).astype(np.float32)
    counts = np.stack([(cells.state == state).sum(axis=0) for state in State])
    state = counts.argmax(axis=0).astype(np.uint8)
    state[has.any(axis=0)] = State.VALUE
    if statistic is HEADROOM:
        state[bits < SATURATED_BITS] = State.SATURATED
    for bad in (State.INF, State.NAN):
        state[counts[bad] > 0] = bad
    known = value[has]
    if not len(known):
        return Cells(bits[None], state[None]), ""
    low, high = heatmap.values_of(np.percentile(known, (5, 95)), statistic).tolist()
    spread = f", 5-95 % {min(low, high):.1f} to {max(low, high):.1f} bits" if statistic is HEADROOM else ""
    return Cells(bits[None], state[None]), spread


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
