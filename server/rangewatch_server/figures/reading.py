"""Reads what a heatmap shows: cells of tensors by step, the worst of ranks, at a cost that is bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from rangewatch_server.core import deadline
from rangewatch_server.figures.base import Grid
from rangewatch_server.figures.heatmap import Cells
from rangewatch_server.figures.heatmap_values import CELL, HEADROOM, Shown, score_and_state
from rangewatch_server.numerics.headroom import State
from rangewatch_server.numerics.pyramid import FANOUT, RANGES, Block
from rangewatch_server.store.names import Tensors

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader

Array = NDArray[Any]

MOST_CELLS = 1 << 20
"""Cells that are read finer than they are drawn, so that a share is the worst of steps and ranks and no mean."""


PART_CELLS = 1 << 18
DRAWN_CELLS = 1 << 22
"""Cells of another statistic than headroom that are read for one rank or the worst of several."""
LEAST_COLUMNS = 64


def columns_for(shown: Shown, asked: int, tensors: int) -> int:
    """Columns of steps: as many as asked, or of thousands of tensors fewer, since other statistics have more inputs."""
    return asked if shown is HEADROOM else min(asked, max(LEAST_COLUMNS, DRAWN_CELLS // max(1, tensors)))


def read(run: RunReader, ranks: Sequence[int], cut: Grid, order: Array, tensors: Tensors, shown: Shown) -> Cells:
    """(tensors of `order`, columns of the grid): the worst of the ranks and of each column's steps."""
    if not len(order) or not cut.width:
        return Cells(np.zeros((len(order), cut.width), np.float32), np.zeros((len(order), cut.width), np.uint8))
    fine = read_as(run, ranks, cut, len(order), shown)
    groups = [(rank,) for rank in ranks] if is_by_rank(ranks, fine, len(order), shown) else [tuple(ranks)]
    rows = np.sort(order)
    found = _cells(run, groups[0], fine, rows, tensors, shown)
    for group in groups[1:]:
        deadline.check()
        found = found.worst_with(_cells(run, group, fine, rows, tensors, shown))
    position = np.searchsorted(rows, order)
    return Cells(found.bits[position], found.state[position])


def read_as(run: RunReader, ranks: Sequence[int], cut: Grid, tensors: int, shown: Shown) -> Grid:
    """The grid at the level that is read: of a share the finest that is not too much, else that of the grid."""
    if not shown.is_share:
        return cut
    least = max(run.steps_a_row(ranks, cut.start, cut.stop), cut.thin_per if cut.thin_step else 1)
    level = cut.level
    while (
        level and FANOUT ** (level - 1) >= least and tensors * cut.width * cut.per <= MOST_CELLS * FANOUT ** (level - 1)
    ):
        level -= 1
    return structs.replace(cut, level=level)


def is_by_rank(ranks: Sequence[int], cut: Grid, tensors: int, shown: Shown) -> bool:
    """Whether each rank is read on its own: only a share needs it."""
    return shown.is_share and len(ranks) > 1 and len(ranks) * tensors * cut.width * cut.per <= MOST_CELLS


def note(run: RunReader, ranks: Sequence[int], cut: Grid, tensors: int, shown: Shown) -> str:
    """What a cell of a share is besides the worst of its column; "" where there is nothing to add."""
    if not shown.is_share:
        return ""
    fine = read_as(run, ranks, cut, tensors, shown)
    together = [f"{FANOUT**fine.level} steps"] if fine.level else []
    if len(ranks) > 1 and not is_by_rank(ranks, fine, tensors, shown):
        together.append(f"{len(ranks)} ranks")
    return f"{shown.title.lower()} of all elements of {' and '.join(together)} together" if together else ""


def _cells(run: RunReader, ranks: tuple[int, ...], cut: Grid, rows: Array, tensors: Tensors, shown: Shown) -> Cells:
    fill = run.names().fill[RANGES]
    wanted = [name for name in dict.fromkeys((*CELL, *shown.inputs)) if name in fill]
    block = run.slice(RANGES, ranks, cut.level, cut.start, cut.stop, wanted, rows)
    edges = cut.edges(block.first, block.width)
    if shown is HEADROOM:
        return cells_of(block, tensors, shown).pooled(edges, 1)
    # A statistic of several inputs has as many temporary arrays of float64: a part of the rows at a time.
    some = max(1, PART_CELLS // max(1, block.width))
    parts = [cells_of(_part(block, at, at + some), tensors, shown).pooled(edges, 1) for at in range(0, len(rows), some)]
    return Cells(np.concatenate([part.bits for part in parts]), np.concatenate([part.state for part in parts]))


def _part(block: Block, start: int, stop: int) -> Block:
    columns = {name: values[start:stop] for name, values in block.columns.items()}
    return Block(block.level, block.first, block.rows[start:stop], columns)


def cells_of(block: Block, tensors: Tensors, shown: Shown) -> Cells:
    """Score and state of every cell of a block of ranges."""
    return Cells(*score_and_state(shown, block, tensors))


def held(cells: Cells, steps_a_column: int) -> tuple[Cells, str]:
    """What is measured every so many columns is drawn until the next time it is; and a note that says so.

    A column without it of a step that was not observed, or held NaN or
    Inf, stays as it is.
    """
    is_measured = np.isfinite(cells.bits) & (cells.state != State.NOT_OBSERVED)
    at = np.flatnonzero(is_measured.any(axis=0))
    if len(at) < 1:
        return cells, ""
    every = int(np.median(np.diff(at))) if len(at) > 1 else cells.bits.shape[1]
    note = f"measured every {every * steps_a_column} steps, and drawn until the next time" if every > 1 else ""
    if len(at) == 1 and note:
        note = "measured once in these steps, and drawn from there on"
    columns = np.arange(cells.bits.shape[1])
    source = at[np.clip(np.searchsorted(at, columns, side="right") - 1, 0, None)]
    is_near = (columns >= source) & (columns - source < every)
    gap = (cells.state == State.VALUE) & np.isnan(cells.bits) & is_near
    return Cells(np.where(gap, cells.bits[:, source], cells.bits), cells.state), note


def mark_stale(run: RunReader, ranks: Sequence[int], cut: Grid, state: Array) -> None:
    """Columns past the last step of ranks that have gone silent are stale, not merely unobserved."""
    silent = [run.silent_since(rank) for rank in ranks]
    if silent and all(step is not None for step in silent):
        past = (cut.first + np.arange(cut.width)) * cut.per > max(step for step in silent if step is not None)
        state[:, past] = np.where(state[:, past] == State.NOT_OBSERVED, np.uint8(State.STALE), state[:, past])
