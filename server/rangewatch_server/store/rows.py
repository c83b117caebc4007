"""Batches as dense blocks: names mapped to the run's ordinals, steps put in their columns. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.statistics import UFUNCS
from rangewatch.statistics.sparse import is_sparse
from rangewatch.wire import Alike
from rangewatch.wire.records import Batch, SeriesRows, Statistic
from rangewatch_server.numerics.pyramid import RANGES, SERIES_PART, Block

Array = NDArray[Any]


class Raw(msgspec.Struct, frozen=True):
    """Columns of one part as they came: `steps` (n,), `rows` (t,) ordinals ascending, `columns[name]` (t, n)."""

    part: str
    steps: Array
    rows: Array
    columns: dict[str, Array]


def raws_of(
    batch: Batch, ordinals: Array, statistics: Sequence[Statistic], series_ordinals: Mapping[str, int]
) -> list[Raw]:
    """The batch's rows under the run's ordinals, ranges first; series of the same steps share one `Raw`.

    Every statistic is present but the sparse ones that nothing was added to: 370 constants would be most of a tile.
    """
    groups: dict[bytes, list[SeriesRows]] = {}
    for each in batch.series:
        if len(each.steps):
            groups.setdefault(np.asarray(each.steps).tobytes(), []).append(each)
    of_series = [
        _series(sorted(group, key=lambda each: series_ordinals[each.name]), series_ordinals)
        for group in groups.values()
    ]
    ranges = batch.ranges
    if ranges is None or not len(ranges.steps) or not len(ranges.tensors):
        return of_series
    rows = ordinals[ranges.tensors]
    shape = (len(rows), len(ranges.steps))
    columns = {
        each.name: sent if (sent := ranges.columns.get(each.name)) is not None else _constant(each.identity, shape)
        for each in statistics
        if each.name in ranges.columns or not is_sparse(each.name)
    }
    if len(rows) > 1 and not bool((np.diff(rows) > 0).all()):
        order = np.argsort(rows)
        rows, columns = rows[order], {name: _pick(values, order) for name, values in columns.items()}
    return [Raw(RANGES, ranges.steps, rows, columns), *of_series]


def raws_of_alike(
    alike: Alike, ordinals: Array, statistics: Sequence[Statistic], series_ordinals: Mapping[str, int]
) -> list[list[Raw]]:
    """What `raws_of` gives of each of these batches, in their order: of a thousand in the time of a hundred."""
    batch, count = alike.first, len(alike.places)
    result: list[list[Raw]] = [[] for _ in range(count)]
    for raw in raws_of(batch, ordinals, statistics, series_ordinals):  # the same rows and steps in all
        columns = _of_ranges(alike, raw, ordinals) if raw.part == RANGES else _of_series(alike, raw, series_ordinals)
        for raws, values in zip(result, zip(*columns, strict=True), strict=True):
            raws.append(Raw(raw.part, raw.steps, raw.rows, dict(zip(raw.columns, values, strict=True))))
    return result


def _of_ranges(alike: Alike, raw: Raw, ordinals: Array) -> list[Sequence[Array]]:
    """Of each of the raw's columns, that of each batch."""
    assert alike.first.ranges is not None
    rows = ordinals[alike.first.ranges.tensors]
    order = None if np.array_equal(rows, raw.rows) else np.argsort(rows)
    shape, count = (len(raw.rows), len(raw.steps)), len(alike.places)
    columns: list[Sequence[Array]] = []
    for name, of_first in raw.columns.items():
        sent = alike.columns.get(name)
        if sent is None:
            columns.append([of_first] * count)
        elif sent.shape[1:] == (1, 1):
            is_same = sent.tobytes() == sent[0].tobytes() * count
            columns.append(
                [of_first] * count if is_same else [_constant(each, shape, sent.dtype) for each in sent.flat]
            )
        else:
            columns.append(list(sent if order is None else sent[:, order]))
    return columns


def _of_series(alike: Alike, raw: Raw, ordinals: Mapping[str, int]) -> list[Sequence[Array]]:
    steps = raw.steps.tobytes()
    sent = zip(alike.first.series, alike.series, strict=True)
    mine = [(ordinals[rows.name], values) for rows, values in sent if np.asarray(rows.steps).tobytes() == steps]
    shape = len(alike.places), len(raw.steps)
    values = np.stack([np.broadcast_to(each, shape) for _, each in sorted(mine, key=itemgetter(0))], axis=1)
    columns = _series_columns(values.astype(np.float64, copy=False))
    return [list(columns[name]) for name in raw.columns]


def _constant(value: float, shape: tuple[int, int], dtype: Any = np.float64) -> Array:
    """As `np.broadcast_to`, in a tenth of its time: five a batch, of a thousand ranks."""
    return np.ndarray(shape, dtype, np.array(value, dtype).tobytes(), 0, (0, 0))


def _series(group: list[SeriesRows], ordinals: Mapping[str, int]) -> Raw:
    values = np.stack([np.asarray(rows.values, np.float64) for rows in group])
    rows = np.array([ordinals[rows.name] for rows in group])
    return Raw(SERIES_PART, group[0].steps, rows, _series_columns(values))


def _series_columns(values: Array) -> dict[str, Array]:
    finite = np.isfinite(values)
    return {
        "count": np.ones(values.shape),
        "nonfinite_count": (~finite).astype(np.float64),
        "min": np.where(finite, values, np.inf),
        "max": np.where(finite, values, -np.inf),
        "sum": np.where(finite, values, 0.0),
        "last": values,
    }


def dense(raws: Sequence[Raw], fill: Mapping[str, float], rules: Mapping[str, str], start: int, stop: int) -> Block:
    """Level 0 block of the steps [start, stop): rows are the union of the raws' rows, columns are steps."""
    names = [name for name in fill if any(name in raw.columns for raw in raws)]
    inside = [clipped for raw in raws if len((clipped := clip(raw, start, stop)).steps)]
    columns: dict[str, Array] = {}
    if _is_gapless(inside, start, stop):  # the usual case: constants stay constants
        for name in names:
            parts = []
            for raw in inside:
                values = raw.columns.get(name)
                shape = len(raw.rows), len(raw.steps)
                parts.append(np.broadcast_to(fill[name], shape) if values is None else values)
            columns[name] = beside(parts)
        return Block(0, start, inside[0].rows, columns)
    rows = union([raw.rows for raw in inside])
    columns = {name: np.full((len(rows), stop - start), fill[name]) for name in names}
    for raw in inside:
        at = np.ix_(np.searchsorted(rows, raw.rows), raw.steps - start)
        present = raw.columns["count"] > 0 if "count" in raw.columns else None
        for name, new in raw.columns.items():
            old = columns[name][at]
            if rules[name] != "last":
                columns[name][at] = UFUNCS[rules[name]](old, new)
            else:
                columns[name][at] = new if present is None else np.where(present, new, old)
    return Block(0, start, rows, columns)


def clip(raw: Raw, start: int, stop: int) -> Raw:
    """The rows of the steps [start, stop) only."""
    low, high = np.searchsorted(raw.steps, [start, stop])
    if low == 0 and high == len(raw.steps):
        return raw
    return Raw(raw.part, raw.steps[low:high], raw.rows, {name: v[:, low:high] for name, v in raw.columns.items()})


def _is_gapless(raws: Sequence[Raw], start: int, stop: int) -> bool:
    """Whether they have each of the steps once, in order, and the same rows."""
    if not raws or sum(len(raw.steps) for raw in raws) != stop - start:
        return False
    expected = start
    for raw in raws:
        whole = raw.steps[0] == expected and raw.steps[-1] == expected + len(raw.steps) - 1
        if not whole or (raw.rows is not raws[0].rows and not np.array_equal(raw.rows, raws[0].rows)):
            return False
        expected += len(raw.steps)
    return True


def beside(parts: list[Array]) -> Array:
    """Columns side by side; the same constant everywhere stays a broadcast view."""
    if all(not any(part.strides) and part.flat[0] == parts[0].flat[0] for part in parts):
        return np.broadcast_to(parts[0].flat[0], (parts[0].shape[0], sum(part.shape[1] for part in parts)))
    return np.concatenate(parts, axis=1)


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
