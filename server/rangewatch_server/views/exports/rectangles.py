"""Rectangles of a run: what is asked for, checked, and read a piece at a time: any two or three of step, rank and
tensor, the others merged.

A piece is one group of ranks over some columns, so that neither JSON nor an export holds more of a run than
`PIECE_CELLS` cells of each statistic while it reads. NaN here means unknown and nothing else: NaN and Inf that a tensor
held are counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from rangewatch import statistics
from rangewatch.statistics import CELL, HEADROOM, UFUNCS, Derived
from rangewatch.statistics.sparse import is_sparse
from rangewatch.wire.records import KINDS
from rangewatch_server.core import deadline
from rangewatch_server.core.errors import ApiError
from rangewatch_server.figures.base import Grid, grid
from rangewatch_server.figures.heatmaps.heatmap import Cells, cells_of
from rangewatch_server.figures.name_filter import chosen
from rangewatch_server.numerics import pyramid
from rangewatch_server.numerics.headroom import limits_of
from rangewatch_server.numerics.pyramid import AMAX_STEP, FANOUT, NO_STEP, NONFINITE_STEP, RANGES, Block
from rangewatch_server.query.reader import RunReader
from rangewatch_server.store.tiles import WIDTH

Array = NDArray[Any]

PIECE_CELLS = 1 << 16  # 64 steps, a tile, of 1,000 tensors; all 11 statistics as a table are 10 MiB
STEP_READ_COLUMNS = 64  # steps that are merged away are read as at most so many columns

OF_FINITE = ("amax", "headroom_bits", AMAX_STEP)  # unknown where no element is finite
FULL_SET = frozenset(each.name for each in statistics.FULL_SET)
DERIVED = {each.name: each for each in statistics.DERIVED if each.name not in {"amax", "amin", "nonfinite_count"}}
"""Those that are not statistics themselves, or a sum of two."""


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
    columns = columns | _of_dtypes(run, block, rectangle.statistics)
    cells = cells_of(block, names.tensors)
    columns["headroom_bits"] = cells.bits
    if "tensor" in rectangle.axes:
        at = np.searchsorted(rows, rectangle.order)
        columns, state = {name: values[at] for name, values in columns.items()}, cells.state[at]
    else:
        columns, state = _one_tensor(columns, cells, names.rules[RANGES])
    return Part(group, cut, {name: known(name, columns) for name in rectangle.statistics}, state)


def _wanted(asked: tuple[str, ...], fill: Mapping[str, float]) -> list[str]:
    inputs = [each for name in asked if name in DERIVED for each in DERIVED[name].inputs]
    if not set(asked).isdisjoint(OF_FINITE):
        inputs.append("numel")
    if not set(asked).isdisjoint(FULL_SET):
        inputs.append("full_numel")
    return [name for name in dict.fromkeys((*CELL, *asked, *inputs)) if name in fill]


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


def _of_dtypes(run: RunReader, block: Block, asked: tuple[str, ...]) -> dict[str, Array]:
    """What is made of each tensor's dtype, but for headroom, which comes with the cells' states."""
    known = [DERIVED[name] for name in asked if name in DERIVED and DERIVED[name].by_dtype and name != HEADROOM.name]
    entries = run.names().tensors.entries
    smallest = np.array([limits_of(entries[row].dtype).smallest_normal for row in block.rows])[:, None]
    return {each.name: _value(each, block.columns, smallest) for each in known if _has(each, block.columns)}


def _has(derived: Derived, columns: Mapping[str, Array]) -> bool:
    return all(name in columns for name in derived.inputs)


def _value(derived: Derived, columns: Mapping[str, Array], smallest: Array | None) -> Array:
    wide = {name: columns[name].astype(np.float64) for name in (*CELL, *derived.inputs)}
    with np.errstate(divide="ignore", invalid="ignore"):  # an amin of 0 is not one: nothing is measured then
        return np.asarray(derived.formula(wide, smallest))


def _one_tensor(columns: dict[str, Array], cells: Cells, rules: Mapping[str, str]) -> tuple[dict[str, Array], Array]:
    """All tensors merged by each statistic's rule; what is of a dtype (headroom, floor room) is the least of any."""
    rooms = {name: columns.pop(name) for name in DERIVED if name in columns}
    merged = pyramid.reduce_axis(columns, rules, 0) | {name: np.fmin.reduce(v, axis=0) for name, v in rooms.items()}
    state = cells.pooled(np.zeros(1, np.int64), 0).state
    return {name: values[None, :] for name, values in merged.items()}, state


def known(name: str, columns: Mapping[str, Array]) -> Array:
    """(rows, columns) float64 of a statistic, NaN where it was not observed, not measured, or does not exist."""
    value, derived = columns.get(name), DERIVED.get(name)
    if value is None and derived is not None and not derived.by_dtype and _has(derived, columns):
        value = _value(derived, columns, None)
    if value is None:  # no full set in this run
        return np.full(columns["call_count"].shape, np.nan)
    value = value.astype(np.float64)
    if name == "call_count":
        return value
    is_known = (columns["call_count"] > 0) & np.isfinite(value) & (value < NO_STEP if name in _PLACES else True)
    if name in ("checksum_max", "axis_checksum"):
        is_known = is_known & (value > 0)
    if name in OF_FINITE and "numel" in columns:
        is_known = is_known & (columns["numel"] > columns["nan_count"] + columns["inf_count"])
    if "full_numel" in columns and (name in FULL_SET or (derived is not None and derived.is_full_set)):
        is_known = is_known & (columns["full_numel"] > 0)
    return np.where(is_known, value, np.nan)


_PLACES = (AMAX_STEP, NONFINITE_STEP)


STEP, RANK, TENSOR = "step", "rank", "tensor"
AXES = {frozenset(axes) for axes in ((STEP, TENSOR), (STEP, RANK), (RANK, TENSOR))}
ALL_AXES = frozenset((STEP, RANK, TENSOR))
MAX_STATISTICS = 400  # names in one request: a catalogue with histograms has 288
MAX_VALUES = 250_000  # of one JSON answer: 5 MB of text and 20 MiB while it is made


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters as they came."""

    axes: str
    statistics: Sequence[str]
    rank: str
    tensor: str
    kinds: Sequence[str]
    q: str
    step: int | None
    start: int | None
    stop: int | None
    columns: int | None
    is_export: bool


def resolve(run: RunReader, asked: Asked) -> Rectangle:
    """The rectangle that is asked for. Raises `ApiError`, in one line that says what to give instead."""
    axes = _axes(asked)
    ranks = _ranks(run, asked.rank)
    cut = _cut(run, asked, axes, ranks)
    rectangle = Rectangle(
        axes=axes,
        groups=tuple((rank,) for rank in ranks) if RANK in axes else (ranks,) if ranks else (),
        order=_order(run, asked),
        cut=cut,
        statistics=_statistics(run, asked.statistics, merged=(cut.per if STEP in axes else cut.stop - cut.start) > 1),
    )
    if not asked.is_export:
        _check_size(rectangle)
    return rectangle


def _bad(text: str) -> ApiError:
    return ApiError(422, "bad_parameter", text)


def _axes(asked: Asked) -> frozenset[str]:
    axes = frozenset(asked.axes.split(","))
    if axes == ALL_AXES and not asked.is_export:
        raise _bad("axes: JSON has two; step,rank,tensor is for format=csv, parquet or arrow")
    if axes not in AXES and axes != ALL_AXES:
        raise _bad("axes must be step,tensor or step,rank or rank,tensor")
    if STEP in axes and asked.step is not None:
        raise _bad("step fixes one step: with step among the axes give start and stop instead")
    if STEP not in axes and asked.columns is not None:
        raise _bad("columns merges steps: give it only with step among the axes")
    if asked.step is not None and (asked.start is not None or asked.stop is not None):
        raise _bad("give either step, or start and stop")
    return axes


def _numbers(name: str, text: str) -> tuple[int, int]:
    """`5` or `2-7` as the first and the last number."""
    first, _, last = text.partition("-")
    last = last if "-" in text else first
    if not all(part.isascii() and part.isdecimal() and len(part) <= 9 for part in (first, last)):
        raise _bad(f"{name} must be a number, first-last or all")
    return int(first), int(last)


def _ranks(run: RunReader, text: str) -> tuple[int, ...]:
    if text == "all":
        return tuple(sorted(run.ranks))
    first, last = _numbers(RANK, text)
    for rank in (first, last):
        if rank not in run.ranks:
            raise ApiError(404, "unknown_rank", f"run {run.id} has no rank {rank}")
    return tuple(rank for rank in sorted(run.ranks) if first <= rank <= last)


def _order(run: RunReader, asked: Asked) -> Array:
    """Ordinals of the tensors, in call order."""
    unknown = [kind for kind in asked.kinds if kind not in KINDS]
    if unknown:
        raise _bad(f"kind {unknown[0][:40]!r} is not one of {', '.join(KINDS)}")
    tensors = run.names().tensors
    order = chosen(tensors, asked.kinds, asked.q)
    if asked.tensor == "all":
        return order
    ends = _numbers(TENSOR, asked.tensor)
    for tensor in ends:
        if tensor >= len(tensors.entries):
            raise ApiError(404, "unknown_tensor", f"run {run.id} has no tensor {tensor}")
    first, last = (tensors.position[tensor] for tensor in ends)
    places = tensors.position[order]
    return order[(places >= first) & (places <= last)]


def _cut(run: RunReader, asked: Asked, axes: frozenset[str], ranks: tuple[int, ...]) -> Grid:
    first, last = run.first_step or 0, -1 if run.last_step is None else run.last_step
    low = first if asked.start is None else max(asked.start, first)
    high = max(low, last + 1 if asked.stop is None else min(asked.stop, last + 1))
    if asked.step is not None:
        low, high = asked.step, asked.step + 1
    thinned = run.thinned(ranks, low, high)
    if low == high or (STEP in axes and asked.columns is None):
        cut = Grid(low, high, 1, 0)  # what is not kept any more is not observed, and the answer says from where
    else:
        # Whole rows of agents that merge steps, whole columns of what retention left: their values are of all of them.
        merged = run.steps_a_row(ranks, low, high)
        cut = grid(low, high, asked.columns or STEP_READ_COLUMNS, max(merged, thinned.per if thinned else 1))
    return cut if thinned is None else structs.replace(cut, thin_step=thinned.step, thin_per=thinned.per)


def _statistics(run: RunReader, names: Sequence[str], merged: bool) -> tuple[str, ...]:
    known = [name for name in run.names().fill[RANGES] if name not in (AMAX_STEP, NONFINITE_STEP)]
    places = (AMAX_STEP, NONFINITE_STEP) if merged else ()
    if len(names) > MAX_STATISTICS:
        raise _bad(f"statistic is given {len(names)} times; at most {MAX_STATISTICS} in one request")
    wanted: list[str] = []
    for name in names:
        if name == "*":
            wanted += [each for each in known if not is_sparse(each)]
        elif name in known or name in DERIVED or name in (AMAX_STEP, NONFINITE_STEP):
            wanted.append(name)
        else:
            listed = [each for each in known if not is_sparse(each)]
            raise _bad(f"statistic {name[:40]!r} is not one of *, {', '.join([*listed, *DERIVED])}")
    return tuple(dict.fromkeys([*wanted, *(places if "amax" in wanted else ())]))


def _check_size(rectangle: Rectangle) -> None:
    rows, columns = rectangle.shape
    # The axes themselves travel too, where there is nothing between them.
    values = max(rows * columns * len(rectangle.statistics), rows, columns)
    if values > MAX_VALUES:
        merge = "columns= to merge steps, " if STEP in rectangle.axes else ""
        raise ApiError(
            413, "too_large",
            f"that is {rows} x {columns} cells of {len(rectangle.statistics)} statistics, and JSON has at most "
            f"{MAX_VALUES} values: give {merge}fewer steps, ranks or tensors, or format=arrow, parquet or csv",
        )  # fmt: skip
