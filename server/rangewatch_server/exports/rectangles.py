"""Rectangles of a run, read a piece at a time: any two or three of step, rank and tensor, the others merged.

A piece is one group of ranks over some columns, so that neither JSON nor an export holds more of a run than
`PIECE_CELLS` cells of each statistic while it reads. NaN here means unknown and nothing else: NaN and Inf that a tensor
held are counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch_server.core import deadline
from rangewatch_server.figures.base import Grid, grid
from rangewatch_server.figures.heatmap import Cells
from rangewatch_server.figures.layers import cells_of
from rangewatch_server.numerics import pyramid
from rangewatch_server.numerics.headroom import limits_of
from rangewatch_server.numerics.pyramid import AMAX_STEP, FANOUT, NO_STEP, NONFINITE_STEP, RANGES, UFUNCS, Block
from rangewatch_server.query.reader import RunReader
from rangewatch_server.store.tiles import WIDTH

Array = NDArray[Any]

PIECE_CELLS = 1 << 16  # 64 steps, a tile, of 1,000 tensors; all 11 statistics as a table are 10 MiB
STEP_READ_COLUMNS = 64  # steps that are merged away are read as at most so many columns

CELL = ("call_count", "amax", "nan_count", "inf_count")
FULL_SET = ("amin", "zero_count", "subnormal_count", "sum_sq")
OF_FINITE = ("amax", "headroom_bits", AMAX_STEP)  # unknown where no element is finite
DERIVED: dict[str, tuple[str, ...]] = {
    "headroom_bits": (),
    "floor_room_bits": ("full_numel", "amin"),
    "rms": ("full_numel", "sum_sq"),
    "zero_fraction": ("full_numel", "zero_count"),
    "subnormal_fraction": ("full_numel", "subnormal_count"),
}


class Rectangle(msgspec.Struct, frozen=True, kw_only=True):
    """What to read, names resolved. `groups`: ranks, those of a group merged. `order`: tensors in call order."""

    axes: frozenset[str]
    groups: tuple[tuple[int, ...], ...]
    order: Array
    cut: Grid
    statistics: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Rows of a piece: its tensors, or 1 when they are merged."""
        return len(self.order) if "tensor" in self.axes else min(len(self.order), 1)

    @property
    def columns(self) -> int:
        """Columns of steps, 1 when they are merged."""
        return self.cut.width if "step" in self.axes else min(self.cut.width, 1)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix that JSON has."""
        if "step" in self.axes:
            return len(self.groups) if "rank" in self.axes else self.rows, self.columns
        return len(self.groups), self.rows

    def column_starts(self, cut: Grid) -> tuple[Array, Array]:
        """Of each column of a piece its first step and how many it stands for, at the ends cut to the range."""
        if "step" not in self.axes:
            return np.array([cut.start]), np.array([cut.stop - cut.start])
        left = np.maximum((cut.first + np.arange(cut.width)) * cut.per, cut.start)
        right = np.minimum((cut.first + np.arange(cut.width) + 1) * cut.per, cut.stop)
        return left, right - left


class Part(msgspec.Struct, frozen=True):
    """One piece as read: `columns[name]` (rows, columns) float64, NaN where not known; `state` likewise, uint8."""

    group: int
    cut: Grid
    columns: dict[str, Array]
    state: Array


def pieces(
    rectangle: Rectangle, is_observed: Callable[[int, Grid], bool] = lambda group, cut: True
) -> Iterator[tuple[int, Grid]]:
    """(number of the rank group, steps): group by group, in order of steps. Ends fall on those of tiles.

    `is_observed` is asked of spans of many pieces, so that a gap of a million steps costs a few questions.
    """
    cut, groups = rectangle.cut, range(len(rectangle.groups) if rectangle.rows and rectangle.columns else 0)
    for group in groups:
        if "step" in rectangle.axes:
            yield from _within(rectangle, group, cut.first, cut.first + cut.width, is_observed)
        else:
            yield group, cut


def _within(
    rectangle: Rectangle, group: int, low: int, high: int, is_observed: Callable[[int, Grid], bool]
) -> Iterator[tuple[int, Grid]]:
    cut, wide = rectangle.cut, max(1, PIECE_CELLS // len(rectangle.order))
    size = wide = wide // WIDTH * WIDTH or wide
    span = Grid(max(low * cut.per, cut.start), min(high * cut.per, cut.stop), cut.per, cut.level)
    if (low // wide + 1) * wide >= high:
        yield group, span
    elif is_observed(group, span):
        while size * FANOUT < high - low:
            size *= FANOUT
        for at in range(low // size * size, high, size):
            yield from _within(rectangle, group, max(at, low), min(at + size, high), is_observed)


def is_observed(run: RunReader, ranks: tuple[int, ...], start: int, stop: int) -> bool:
    """Whether any tensor of any of the ranks was observed in these steps."""
    level = grid(start, stop, STEP_READ_COLUMNS).level
    return bool(run.slice(RANGES, ranks, level, start, stop, ("call_count",)).columns["call_count"].any())


def read(run: RunReader, rectangle: Rectangle, group: int, cut: Grid) -> Part:
    """One piece. Raises `TimeLimitReached`."""
    deadline.check()
    names = run.names()
    rows = np.sort(rectangle.order)
    wanted = _wanted(rectangle.statistics, names.fill[RANGES])
    block = run.slice(RANGES, rectangle.groups[group], cut.level, cut.start, cut.stop, wanted, rows)
    columns = _by_column(block, cut, names.rules[RANGES], "step" in rectangle.axes)
    block = Block(0, 0, rows, columns)
    columns = columns | _rooms(run, block, rectangle.statistics)
    cells = cells_of(block, names.tensors)
    columns["headroom_bits"] = cells.bits
    if "tensor" in rectangle.axes:
        at = np.searchsorted(rows, rectangle.order)
        columns, state = {name: values[at] for name, values in columns.items()}, cells.state[at]
    else:
        columns, state = _one_tensor(columns, cells, names.rules[RANGES])
    return Part(group, cut, {name: known(name, columns) for name in rectangle.statistics}, state)


def _wanted(statistics: tuple[str, ...], fill: Mapping[str, float]) -> list[str]:
    inputs = [each for name in statistics for each in DERIVED.get(name, ())]
    if not set(statistics).isdisjoint(OF_FINITE):
        inputs.append("numel")
    if not set(statistics).isdisjoint(FULL_SET):
        inputs.append("full_numel")
    return [name for name in dict.fromkeys((*CELL, *statistics, *inputs)) if name in fill]


def _by_column(block: Block, cut: Grid, rules: Mapping[str, str], by_step: bool) -> dict[str, Array]:
    """The block's columns merged to those of the grid, or to one."""
    edges = cut.edges(block.first, block.width) if by_step else np.zeros(1, np.int64)
    if len(edges) == block.width:
        return block.columns
    counts = np.diff(np.append(edges, block.width))
    return {name: _reduced(values, block.columns, edges, counts, rules[name]) for name, values in block.columns.items()}


def _reduced(values: Array, columns: Mapping[str, Array], edges: Array, counts: Array, rule: str) -> Array:
    if rule != "step_of_amax":
        exact = values.astype(np.float64, copy=False) if rule == "sum" else values
        return UFUNCS[rule].reduceat(exact, edges, axis=1).astype(np.float64, copy=False)
    largest = np.repeat(np.maximum.reduceat(columns["amax"], edges, axis=1), counts, axis=1)
    return np.minimum.reduceat(np.where(columns["amax"] == largest, values, NO_STEP), edges, axis=1)


def _rooms(run: RunReader, block: Block, statistics: tuple[str, ...]) -> dict[str, Array]:
    """The room above the smallest normal number, which is of each tensor by its dtype."""
    if "floor_room_bits" not in statistics or "amin" not in block.columns:
        return {}
    entries = run.names().tensors.entries
    smallest = np.array([limits_of(entries[row].dtype).smallest_normal for row in block.rows])
    with np.errstate(divide="ignore"):  # an amin of 0 is not one: nothing is measured then
        return {"floor_room_bits": np.log2(block.columns["amin"].astype(np.float64)) - np.log2(smallest)[:, None]}


def _one_tensor(columns: dict[str, Array], cells: Cells, rules: Mapping[str, str]) -> tuple[dict[str, Array], Array]:
    """All tensors merged by each statistic's rule; headroom and floor room are the least of any."""
    rooms = {name: columns.pop(name) for name in ("headroom_bits", "floor_room_bits") if name in columns}
    merged = pyramid.reduce_axis(columns, rules, 0) | {name: np.fmin.reduce(v, axis=0) for name, v in rooms.items()}
    state = cells.pooled(np.zeros(1, np.int64), 0).state
    return {name: values[None, :] for name, values in merged.items()}, state


def known(name: str, columns: Mapping[str, Array]) -> Array:
    """(rows, columns) float64 of a statistic, NaN where it was not observed, not measured, or does not exist."""
    value = {**columns, **_ratios(name, columns)}.get(name)
    if value is None:  # no full set in this run
        return np.full(columns["call_count"].shape, np.nan)
    value = value.astype(np.float64)
    if name == "call_count":
        return value
    is_known = (columns["call_count"] > 0) & np.isfinite(value) & (value < NO_STEP if name in _PLACES else True)
    if name == "checksum_max":
        is_known = is_known & (value > 0)
    if name in OF_FINITE and "numel" in columns:
        is_known = is_known & (columns["numel"] > columns["nan_count"] + columns["inf_count"])
    if "full_numel" in columns and (name in FULL_SET or "full_numel" in DERIVED.get(name, ())):
        is_known = is_known & (columns["full_numel"] > 0)
    return np.where(is_known, value, np.nan)


_PLACES = (AMAX_STEP, NONFINITE_STEP)


def _ratios(name: str, columns: Mapping[str, Array]) -> dict[str, Array]:
    inputs = DERIVED.get(name, ())
    if len(inputs) != 2 or name == "floor_room_bits" or any(each not in columns for each in inputs):
        return {}
    numel, amount = (columns[each].astype(np.float64) for each in inputs)
    with np.errstate(divide="ignore", invalid="ignore"):
        if name != "rms":
            return {name: amount / numel}
        return {name: np.sqrt(amount / np.maximum(numel - columns["nan_count"] - columns["inf_count"], 1))}
