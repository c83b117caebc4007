"""Batches as dense blocks: names mapped to the run's ordinals, steps put in their columns. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.statistics.exponents import exponent_of
from rangewatch.wire.records import Batch, SeriesRows, Statistic
from rangewatch_server.numerics.pyramid import RANGES, SERIES_PART, Block

Array = NDArray[Any]


class Raw(msgspec.Struct, frozen=True):
    """Columns of one part as they came: `steps` (n,), `rows` (t,) ordinals ascending, `columns[name]` (t, n)."""

    part: str
    steps: Array
    rows: Array
    columns: dict[str, Array]


def raw_ranges(batch: Batch, ordinals: Array, statistics: Sequence[Statistic]) -> Raw | None:
    """The batch's range rows under the run's ordinals; None when it has none.

    Every statistic is present but the bins of histograms that nothing lay in: 277 constants would be most of a tile.
    """
    ranges = batch.ranges
    if ranges is None or not len(ranges.steps) or not len(ranges.tensors):
        return None
    rows = ordinals[ranges.tensors]
    shape = (len(rows), len(ranges.steps))
    columns = {
        each.name: ranges.columns.get(each.name, np.broadcast_to(each.identity, shape))
        for each in statistics
        if each.name in ranges.columns or exponent_of(each.name) is None
    }
    if len(rows) > 1 and not bool((np.diff(rows) > 0).all()):
        order = np.argsort(rows)
        rows, columns = rows[order], {name: _pick(values, order) for name, values in columns.items()}
    return Raw(RANGES, ranges.steps, rows, columns)


def raw_series(batch: Batch, ordinals: Mapping[str, int]) -> list[Raw]:
    """The batch's series as rows of the series part; those with the same steps share one `Raw`."""
    groups: dict[bytes, list[SeriesRows]] = {}
    for rows in batch.series:
        if len(rows.steps):
            groups.setdefault(np.asarray(rows.steps).tobytes(), []).append(rows)
    return [_series(sorted(group, key=lambda rows: ordinals[rows.name]), ordinals) for group in groups.values()]


def _series(group: list[SeriesRows], ordinals: Mapping[str, int]) -> Raw:
    values = np.stack([np.asarray(rows.values, np.float64) for rows in group])
    finite = np.isfinite(values)
    columns = {
        "count": np.ones(values.shape),
        "nonfinite_count": (~finite).astype(np.float64),
        "min": np.where(finite, values, np.inf),
        "max": np.where(finite, values, -np.inf),
        "sum": np.where(finite, values, 0.0),
        "last": values,
    }
    return Raw(SERIES_PART, group[0].steps, np.array([ordinals[rows.name] for rows in group]), columns)


def dense(raws: Sequence[Raw], fill: Mapping[str, float], rules: Mapping[str, str], start: int, stop: int) -> Block:
    """Level 0 block of the steps [start, stop): rows are the union of the raws' rows, columns are steps."""
    names = [name for name in fill if any(name in raw.columns for raw in raws)]
    inside = [clipped for raw in raws if len((clipped := clip(raw, start, stop)).steps)]
    joined = _joined(inside, names, fill, start, stop)
    return joined if joined is not None else _scattered(inside, names, fill, rules, start, stop)


def clip(raw: Raw, start: int, stop: int) -> Raw:
    """The rows of the steps [start, stop) only."""
    low, high = np.searchsorted(raw.steps, [start, stop])
    if low == 0 and high == len(raw.steps):
        return raw
    return Raw(raw.part, raw.steps[low:high], raw.rows, {name: v[:, low:high] for name, v in raw.columns.items()})


def _joined(raws: Sequence[Raw], names: list[str], fill: Mapping[str, float], start: int, stop: int) -> Block | None:
    """The usual case, in order and without gaps: side by side, constants kept as constants."""
    if not raws or sum(len(raw.steps) for raw in raws) != stop - start:
        return None
    expected = start
    for raw in raws:
        whole = raw.steps[0] == expected and raw.steps[-1] == expected + len(raw.steps) - 1
        if not whole or (raw.rows is not raws[0].rows and not np.array_equal(raw.rows, raws[0].rows)):
            return None
        expected += len(raw.steps)
    columns = {name: beside([_column(raw, name, fill[name]) for raw in raws]) for name in names}
    return Block(0, start, raws[0].rows, columns)


def _column(raw: Raw, name: str, fill: float) -> Array:
    found = raw.columns.get(name)
    return np.broadcast_to(fill, (len(raw.rows), len(raw.steps))) if found is None else found


def beside(parts: list[Array]) -> Array:
    """Columns side by side; the same constant everywhere stays a broadcast view."""
    if all(not any(part.strides) and part.flat[0] == parts[0].flat[0] for part in parts):
        return np.broadcast_to(parts[0].flat[0], (parts[0].shape[0], sum(part.shape[1] for part in parts)))
    return np.concatenate(parts, axis=1)


def _scattered(
    raws: Sequence[Raw], names: list[str], fill: Mapping[str, float], rules: Mapping[str, str], start: int, stop: int
) -> Block:
    rows = union([raw.rows for raw in raws])
    columns = {name: np.full((len(rows), stop - start), fill[name]) for name in names}
    for raw in raws:
        at = np.ix_(np.searchsorted(rows, raw.rows), raw.steps - start)
        present = raw.columns["count"] > 0 if "count" in raw.columns else None
        for name in raw.columns:
            columns[name][at] = _merged(columns[name][at], raw.columns[name], rules[name], present)
    return Block(0, start, rows, columns)


def _merged(old: Array, new: Array, rule: str, present: Array | None) -> Array:
    if rule == "last":
        return np.where(present, new, old) if present is not None else new
    if rule == "sum":
        return np.add(old, new)
    return np.maximum(old, new) if rule == "max" else np.minimum(old, new)


def align(block: Block, rows: Array, fill: Mapping[str, float]) -> Block:
    """The same block with exactly `rows`: missing ones hold identities, others are left out."""
    if block.rows is rows or np.array_equal(block.rows, rows):
        return block
    at = np.searchsorted(block.rows, rows)
    at_clipped = np.minimum(at, max(len(block.rows) - 1, 0))
    known = block.rows[at_clipped] == rows if len(block.rows) else np.zeros(len(rows), bool)
    columns = {name: _aligned(values, at_clipped, known, fill[name]) for name, values in block.columns.items()}
    return Block(block.level, block.first, rows, columns)


def _aligned(values: Array, at: Array, known: Array, fill: float) -> Array:
    if known.all():
        return _pick(values, at)
    result = np.full((len(known), values.shape[1]), fill, np.float32 if values.dtype == np.float32 else np.float64)
    result[known] = values[at[known]]
    return result


def union(rows: Iterable[Array]) -> Array:
    """Ascending ordinals that appear in any of `rows`."""
    different = {id(each): each for each in rows}.values()
    return np.unique(np.concatenate(list(different))) if different else np.zeros(0, np.int64)


def _pick(values: Array, order: Array) -> Array:
    return np.broadcast_to(values.flat[0], (len(order), values.shape[1])) if not any(values.strides) else values[order]
