"""Heatmaps of `statistics.DERIVED`: the cells of tensors by step, read at a bounded cost, and their figure.

A cell holds a score: the value, or its negative where the largest is the worst, or `folded` where what is furthest from
0 is, so that the least of any cells is the worst of them whatever is shown, and NaN where it was not measured. No scale
is stretched to the data, so that two runs compare by eye.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from rangewatch.statistics import CELL, DERIVED, HEADROOM, Derived
from rangewatch_server.core import deadline
from rangewatch_server.figures.base import FigureData, Grid, typed
from rangewatch_server.numerics import headroom
from rangewatch_server.numerics.headroom import STATE_NAMES, State, headroom_bits, limits_of, states
from rangewatch_server.numerics.pyramid import FANOUT, RANGES, Block
from rangewatch_server.store.names import Tensors

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader

Array = NDArray[Any]


def scale_meta(name: str, title: str, scale: str, worst_title: str, low: float, high: float) -> dict[str, Any]:
    """`meta.statistic` of docs/api.md for what is not one of `DERIVED`; its least is the worst."""
    return {
        "name": name, "title": title, "scale": scale, "worst": "least", "worst_title": worst_title,
        "is_full_set": False, "low": low, "high": high,
    }  # fmt: skip


STATISTICS = {each.name: each for each in DERIVED}


class Cells(msgspec.Struct):
    """A rectangle of cells: `bits` (r, n) float32 scores, the least is the worst, of which headroom in bits is one,
    with +Inf for none; `state` (r, n) uint8."""

    bits: Array
    state: Array

    @classmethod
    def unobserved(cls, rows: int, columns: int) -> Cells:
        """Cells of which nothing is known."""
        shape = (rows, columns)
        return cls(np.full(shape, np.inf, np.float32), np.full(shape, State.NOT_OBSERVED, np.uint8))

    @property
    def transposed(self) -> Cells:
        """(n, r)."""
        return Cells(self.bits.T, self.state.T)

    @property
    def has_value(self) -> Array:
        """(r, n) bool: what is shown is a value, and no state in its place."""
        with_value = (State.VALUE, State.SATURATED, State.SCALE_STALE, State.SCALE_TOO_SMALL)
        return np.isin(self.state, with_value)

    @property
    def has_headroom(self) -> Array:
        """(r, n) bool: the score is a number; nothing in the cell is NaN or Inf, and something is not zero."""
        return self.has_value & np.isfinite(self.bits)

    @property
    def is_nonfinite(self) -> Array:
        """(r, n) bool: cells that hold a NaN or Inf."""
        return (self.state == State.INF) | (self.state == State.NAN)

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


def cells_of(block: Block, tensors: Tensors, statistic: Derived = HEADROOM) -> Cells:
    """Score and state of every cell of a block of ranges."""
    bits = headroom_bits(block.columns["amax"], tensors.log2_max[block.rows])
    state = states(block.columns, bits)
    if statistic is HEADROOM:
        return Cells(bits, state)
    state[state == State.SATURATED] = State.VALUE
    if statistic.scale in ("fraction", "count"):  # 0 and 1 lie on the scale
        state[state == State.ZERO] = State.VALUE
    wanted = (*CELL, *statistic.inputs)
    if not all(name in block.columns for name in wanted):  # the run has no full set
        return Cells(np.full(bits.shape, np.nan, np.float32), state)
    columns = {name: block.columns[name].astype(np.float64) for name in wanted}
    dtypes = [tensors.entries[row].dtype for row in block.rows] if statistic.by_dtype else ()
    smallest = np.array([limits_of(dtype).smallest_normal for dtype in dtypes])[:, None]
    if statistic.mark is not None:
        own = statistic.mark(columns, block.rows)
        state = np.where((own > 0) & (state == State.VALUE), own, state).astype(np.uint8)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = statistic.formula(columns, smallest)
        if statistic.scale in ("log2", "count"):
            value = np.log2(value if statistic.scale == "log2" else 1 + value)
    is_measured = np.isfinite(value)
    if statistic.is_full_set:
        is_measured &= columns["full_numel"] > 0
    return Cells((statistic.sign * np.where(is_measured, value, np.nan)).astype(np.float32), state)


FOLD = 1 << 10
"""Parts of a bit that a change is rounded to."""


def folded(change: Array) -> Array:
    """Scores of changes up and down, float32: the furthest from 0 is the least, and its direction the last digit."""
    size = np.minimum(np.round(np.abs(change) * FOLD), 1 << 21)
    return (-(2 * size + (change < 0)) / (2 * FOLD)).astype(np.float32)


def values_of(scores: Array, statistic: Derived) -> Array:
    """The values on the scale that the scores are of."""
    if statistic.worst != "furthest":
        return np.asarray(statistic.sign * scores)
    parts = np.round(-2.0 * FOLD * scores.astype(np.float64))
    size = np.floor(parts / 2) / FOLD
    return np.asarray(np.where(parts % 2 == 1, -size, size))


# Reading them at a cost that is bounded.

SHARE_CELLS = 1 << 20
"""Cells that are read finer than they are drawn, so that a share is the worst of steps and ranks and no mean."""
PART_CELLS = 1 << 18
DRAWN_CELLS = 1 << 22
"""Cells of another statistic than headroom that are read for one rank or the worst of several."""
LEAST_COLUMNS = 64


def columns_for(statistic: Derived, asked: int, tensors: int) -> int:
    """Columns of steps: as many as asked, or of thousands of tensors fewer, since other statistics have more inputs."""
    return asked if statistic is HEADROOM else min(asked, max(LEAST_COLUMNS, DRAWN_CELLS // max(1, tensors)))


def read(run: RunReader, ranks: Sequence[int], cut: Grid, order: Array, statistic: Derived = HEADROOM) -> Cells:
    """(tensors of `order`, columns of the grid): the worst of the ranks and of each column's steps."""
    if not len(order) or not cut.width:
        return Cells(np.zeros((len(order), cut.width), np.float32), np.zeros((len(order), cut.width), np.uint8))
    fine, groups = _plan(run, ranks, cut, len(order), statistic)
    rows, names = np.sort(order), run.names()
    wanted = [name for name in dict.fromkeys((*CELL, *statistic.inputs)) if name in names.fill[RANGES]]
    worst: Cells | None = None
    for group in groups:
        deadline.check()
        block = run.slice(RANGES, group, fine.level, fine.start, fine.stop, wanted, rows)
        edges = fine.edges(block.first, block.width)
        # A statistic of several inputs has as many temporary arrays of float64: a part of the rows at a time.
        some = len(rows) if statistic is HEADROOM else max(1, PART_CELLS // max(1, block.width))
        parts: list[Cells] = []
        for at in range(0, len(rows), some):
            columns = {name: values[at : at + some] for name, values in block.columns.items()}
            part = Block(block.level, block.first, block.rows[at : at + some], columns)
            parts.append(cells_of(part, names.tensors, statistic).pooled(edges, 1))
        cells = parts[0]
        if len(parts) > 1:
            cells = Cells(np.concatenate([each.bits for each in parts]), np.concatenate([each.state for each in parts]))
        worst = cells if worst is None else worst.worst_with(cells)
    assert worst is not None, "there is one group of ranks at least"
    return worst if np.array_equal(rows, order) else worst.taken(np.searchsorted(rows, order), 0)


def _plan(
    run: RunReader, ranks: Sequence[int], cut: Grid, tensors: int, statistic: Derived
) -> tuple[Grid, list[tuple[int, ...]]]:
    """The grid at the level that is read, and the ranks that are read together: of a share the finest level, and each
    rank on its own, where that is not too much."""
    if not statistic.is_share:
        return cut, [tuple(ranks)]
    least = max(run.steps_a_row(ranks, cut.start, cut.stop), cut.thin_per if cut.thin_step else 1)
    level, cells = cut.level, tensors * cut.width * cut.per
    while level and FANOUT ** (level - 1) >= least and cells <= SHARE_CELLS * FANOUT ** (level - 1):
        level -= 1
    is_by_rank = len(ranks) > 1 and len(ranks) * cells <= SHARE_CELLS
    return structs.replace(cut, level=level), [(rank,) for rank in ranks] if is_by_rank else [tuple(ranks)]


def note(run: RunReader, ranks: Sequence[int], cut: Grid, tensors: int, statistic: Derived) -> str:
    """What a cell of a share is besides the worst of its column; "" where there is nothing to add."""
    if not statistic.is_share:
        return ""
    fine, groups = _plan(run, ranks, cut, tensors, statistic)
    together = [f"{FANOUT**fine.level} steps"] if fine.level else []
    if len(groups[0]) > 1:
        together.append(f"{len(ranks)} ranks")
    return f"{statistic.title.lower()} of all elements of {' and '.join(together)} together" if together else ""


def held(cells: Cells, steps_a_column: int) -> tuple[Cells, str]:
    """What is measured every so many columns is drawn until the next time it is; and a note that says so.

    A column without it of a step that was not observed, or held NaN or Inf, stays as it is.
    """
    is_measured = np.isfinite(cells.bits) & (cells.state != State.NOT_OBSERVED)
    at = np.flatnonzero(is_measured.any(axis=0))
    if len(at) < 1:
        return cells, ""
    every = int(np.median(np.diff(at))) if len(at) > 1 else cells.bits.shape[1]
    text = f"measured every {every * steps_a_column} steps, and drawn until the next time" if every > 1 else ""
    if len(at) == 1 and text:
        text = "measured once in these steps, and drawn from there on"
    columns = np.arange(cells.bits.shape[1])
    source = at[np.clip(np.searchsorted(at, columns, side="right") - 1, 0, None)]
    is_near = (columns >= source) & (columns - source < every)
    gap = (cells.state == State.VALUE) & np.isnan(cells.bits) & is_near
    return Cells(np.where(gap, cells.bits[:, source], cells.bits), cells.state), text


def mark_stale(run: RunReader, ranks: Sequence[int], cut: Grid, state: Array) -> None:
    """Columns past the last step of ranks that have gone silent are stale, not merely unobserved."""
    silent = [run.silent_since(rank) for rank in ranks]
    if silent and all(step is not None for step in silent):
        past = (cut.first + np.arange(cut.width)) * cut.per > max(step for step in silent if step is not None)
        state[:, past] = np.where(state[:, past] == State.NOT_OBSERVED, np.uint8(State.STALE), state[:, past])


def figure(
    cells: Cells, rows: list[dict[str, Any]], grid: Grid, statistic: Derived = HEADROOM, *notes: str
) -> FigureData:
    """The figure of docs/api.md of cells already pooled to `grid`'s columns; values are (r, n) float32 on the scale,
    NaN where a state is shown in their place, or nothing was measured."""
    bad = cells.is_nonfinite
    is_shown = cells.has_value
    if statistic.scale == "count":  # known also where the state says that there is some
        is_shown |= bad
    is_shown &= np.isfinite(cells.bits)
    shown = values_of(np.where(is_shown, cells.bits, 0), statistic)
    values = np.where(is_shown, shown, np.nan).astype(np.float32)
    meta = grid.meta()
    meta |= {
        "note": "; ".join(each for each in (meta["note"], *notes) if each),
        "rows": rows,
        "states": typed(cells.state, "u1"),
        "state_names": STATE_NAMES,
        "nonfinite_columns": np.flatnonzero(bad.any(axis=0)).tolist() if bad.size else [],
        "statistic": statistic.meta(),
    }
    return [{"name": statistic.title.lower(), **grid.origin, "z": typed(values, "f4")}], meta
