"""Pure merges of columns: steps into coarser steps, ranks into the worst of ranks. No I/O.

A `Block` is a dense rectangle of one `Part`: rows (tensors, series or kinds) by columns of `8 ** level` steps each.
Cells that nothing was recorded for hold the statistics' identities, so merging is plain elementwise arithmetic and any
grouping gives the same answer. Two more columns ride along so that no zoom level loses the place of what it shows:
`amax_step`, the step of the largest magnitude, and `nonfinite_step`, the first step with a NaN or Inf.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.statistics import SERIES, UFUNCS
from rangewatch.wire.records import Statistic

Array = NDArray[Any]

FANOUT = 8
NO_STEP = float(2**53)  # larger than any step; exact in float64
AMAX_STEP, NONFINITE_STEP = "amax_step", "nonfinite_step"

RANGES, SERIES_PART, SUMMARY = "ranges", "series", "summary"
PARTS = (RANGES, SERIES_PART, SUMMARY)

# The least headroom of all tensors of a kind, per step: rows are kinds, so a whole rank is a few rows.
SUMMARY_STATISTICS = (
    Statistic("observed", "steps", "sum", 0.0, "Steps at which a tensor was observed, added over ranks."),
    Statistic("bits", "bits", "min", float("inf"), "Least headroom of a finite magnitude."),
    Statistic("nan_count", "elements", "sum", 0.0, "NaN elements of all tensors."),
    Statistic("inf_count", "elements", "sum", 0.0, "Inf elements of all tensors."),
)

# A step of a rank that comes in two parts is one step still: before steps are added, parts of one merge like this.
PARTS_OF_A_STEP = {SUMMARY: {"observed": "max"}}


class Block(msgspec.Struct):
    """`columns[name]` is (rows, n); column `i` covers steps `[(first + i) * 8**level, (first + i + 1) * 8**level)`."""

    level: int
    first: int
    rows: Array
    columns: dict[str, Array]

    @property
    def width(self) -> int:
        return next((values.shape[1] for values in self.columns.values()), 0)


def identities(part: str, statistics: tuple[Statistic, ...]) -> dict[str, float]:
    """Column name -> neutral element, for all columns that `part` keeps."""
    of_part = {RANGES: statistics, SERIES_PART: SERIES, SUMMARY: SUMMARY_STATISTICS}[part]
    result = {statistic.name: statistic.identity for statistic in of_part}
    if part == RANGES:
        result |= {AMAX_STEP: NO_STEP, NONFINITE_STEP: NO_STEP}
    return result


def merge_rules(part: str, statistics: tuple[Statistic, ...]) -> dict[str, str]:
    """Column name -> merge rule, for all columns that `part` keeps."""
    of_part = {RANGES: statistics, SERIES_PART: SERIES, SUMMARY: SUMMARY_STATISTICS}[part]
    result = {statistic.name: statistic.merge for statistic in of_part}
    if part == RANGES:
        result |= {AMAX_STEP: "step_of_amax", NONFINITE_STEP: "min"}
    return result


def reduce_axis(columns: Mapping[str, Array], rules: Mapping[str, str], axis: int) -> dict[str, Array]:
    """Merge away one axis (steps must run in order along it). Counts are summed in float64."""
    return {name: _reduce(name, values, columns, rules[name], axis) for name, values in columns.items()}


def _reduce(name: str, values: Array, columns: Mapping[str, Array], rule: str, axis: int) -> Array:
    if rule == "step_of_amax":
        # Ties go to the earliest step: where amax is below the group's maximum its step cannot win.
        amax = columns["amax"]
        best = amax == np.expand_dims(_along(np.maximum, amax, axis), axis)
        return _along(np.minimum, np.where(best, values, NO_STEP), axis)
    if rule == "last":
        return _last(values, columns["count"] > 0, axis)
    if rule == "sum" and all(stride == 0 for stride in values.strides):
        total = float(values.flat[0]) * values.shape[axis] if values.size else 0.0
        return np.broadcast_to(total, _without(values.shape, axis))
    if _is_constant(values):  # it merges to itself
        return np.broadcast_to(values.flat[0], _without(values.shape, axis))
    return _along(UFUNCS[rule], values, axis, np.float64 if rule == "sum" else None)


def _along(ufunc: np.ufunc, values: Array, axis: int, dtype: Any = None) -> Array:
    """`ufunc.reduce`, and over groups of eight the same in a tenth of the time: numpy would loop over each group.

    Pairs, pairs of pairs, and those: the order in which numpy adds eight, so sums are the same to the last bit.
    """
    if axis % values.ndim != values.ndim - 1 or values.shape[-1] != FANOUT:
        return cast("Array", ufunc.reduce(values, axis=axis, dtype=dtype))
    pairs = ufunc(values[..., 0::2], values[..., 1::2], dtype=dtype)
    fours = ufunc(pairs[..., 0::2], pairs[..., 1::2])
    return cast("Array", ufunc(fours[..., 0], fours[..., 1]))


def _is_constant(values: Array) -> bool:
    return values.size > 0 and not any(values.strides)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    axis %= len(shape)
    return shape[:axis] + shape[axis + 1 :]


def _last(values: Array, present: Array, axis: int) -> Array:
    size = values.shape[axis]
    along = [-1 if each == axis % values.ndim else 1 for each in range(values.ndim)]
    position = np.where(present, np.arange(size).reshape(along), -1)
    latest = position.max(axis=axis, keepdims=True)
    picked = np.take_along_axis(values, np.maximum(latest, 0), axis=axis)
    return np.where(latest >= 0, picked, np.nan).squeeze(axis)


def level_for(steps: int, columns: int) -> int:
    """The finest level at which `steps` steps are at most so many columns, not counting the one they begin in."""
    level = 0
    while steps // FANOUT**level > columns:
        level += 1
    return level


def coarser(block: Block, rules: Mapping[str, str], fill: Mapping[str, float], factor: int = FANOUT) -> Block:
    """The same data one level up: columns are merged in groups of `factor`, aligned to step 0."""
    before = block.first % factor
    after = -(before + block.width) % factor
    columns = {
        name: padded(values, before, after, fill[name]) if before or after else values
        for name, values in block.columns.items()
    }
    grouped = {name: values.reshape(len(values), values.shape[1] // factor, factor) for name, values in columns.items()}
    return Block(block.level + 1, block.first // factor, block.rows, reduce_axis(grouped, rules, 2))


def padded(values: Array, before: int, after: int, fill: float) -> Array:
    """`values` with columns of the neutral element on both sides."""
    if values.dtype.kind != "f" and fill != 0:  # columns are stored as small integers where they fit; Inf does not
        values = values.astype(np.float64)
    rows, width = values.shape
    if _is_constant(values) and values.flat[0] == fill:
        return np.broadcast_to(values.flat[0], (rows, before + width + after))
    result = np.full((rows, before + width + after), fill, values.dtype)
    result[:, before : before + width] = values
    return result


def merge_blocks(blocks: list[Block], rules: Mapping[str, str]) -> Block:
    """The worst of several ranks: same rows, same width, merged elementwise. `blocks` is not empty.

    A column that a block lacks holds identities there, as the bins of a histogram that nothing lay in.
    """
    if len(blocks) == 1:
        return blocks[0]
    first = blocks[0]
    names = dict.fromkeys(name for block in blocks for name in block.columns)
    stacked = {name: [block.columns[name] for block in blocks if name in block.columns] for name in names}
    return Block(first.level, first.first, first.rows, _merge_lists(stacked, rules))


def _merge_lists(stacked: Mapping[str, list[Array]], rules: Mapping[str, str]) -> dict[str, Array]:
    merged: dict[str, Array] = {}
    for name, arrays in stacked.items():
        if rules[name] in ("step_of_amax", "last"):
            whole = {each: np.stack(stacked[each]) for each in {name, "amax" if name == AMAX_STEP else "count"}}
            merged[name] = _reduce(name, whole[name], whole, rules[name], 0)
        else:
            merged[name] = _fold(arrays, rules[name])
    return merged


def _fold(arrays: list[Array], rule: str) -> Array:
    ufunc = UFUNCS[rule]
    if not any(any(values.strides) for values in arrays) and arrays[0].size:  # constants merge to a constant
        return np.broadcast_to(ufunc.reduce([float(values.flat[0]) for values in arrays]), arrays[0].shape)
    # In place and pairwise: stacking 1,000 ranks would copy everything once more.
    total = arrays[0].astype(np.float64 if rule == "sum" else np.result_type(*arrays))
    for values in arrays[1:]:
        ufunc(total, values, out=total)
    return total


def with_places(columns: dict[str, Array], steps: Array) -> dict[str, Array]:
    """Raw (level 0) range columns with `amax_step` and `nonfinite_step` added; `steps` are the columns' steps, (n,)."""
    calls, nans, infs = (columns[name] for name in ("call_count", "nan_count", "inf_count"))
    at = np.broadcast_to(steps.astype(np.float64), calls.shape)
    # The usual step has all tensors and nothing that is not finite: then no cell is examined.
    seen = at if _is_constant(calls) and calls.flat[0] > 0 else np.where(calls > 0, at, NO_STEP)
    if all(_is_constant(each) and each.flat[0] == 0 for each in (nans, infs)):
        return columns | {AMAX_STEP: seen, NONFINITE_STEP: np.broadcast_to(NO_STEP, calls.shape)}
    return columns | {AMAX_STEP: seen, NONFINITE_STEP: np.where((nans > 0) | (infs > 0), at, NO_STEP)}
