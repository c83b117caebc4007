"""Fewer rows of a chunk of samples, so that no spike of one second is lost: a plot has some 2,000 columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch_server.store.samples import STEP

if TYPE_CHECKING:
    from rangewatch_server.samples_reader import Chunk

Array = NDArray[Any]


def downsample(
    chunk: Chunk, columns: int, rules: Mapping[str, str], start_ns: int | None = None, stop_ns: int | None = None
) -> Chunk:
    """At most `columns` rows: of equal parts of [start_ns, stop_ns), the chunk's own time by default.

    `rules`: "min", "last", "sum" or "or" (of the bits of whole numbers) by a column's name; others have "max", and
    "step" has "last". What is unknown counts only where nothing is known. A row's time is the first of its part; parts
    without rows are left out, and so are rows outside the time. Raises `KeyError` for another rule.
    """
    start = int(chunk.times_ns[0]) if start_ns is None and len(chunk.times_ns) else start_ns or 0
    stop = int(chunk.times_ns[-1]) + 1 if stop_ns is None and len(chunk.times_ns) else stop_ns or 0
    low, high = np.searchsorted(chunk.times_ns, (start, stop))
    times = chunk.times_ns[low:high]
    part_ns = max(-(-(stop - start) // max(columns, 1)), 1)
    first = np.flatnonzero(np.diff((times - start) // part_ns, prepend=-1))
    usual = {STEP: "last", **rules}
    merged = {
        name: RULES[usual.get(name, "max")](values[low:high], first) if len(first) else values[:0]
        for name, values in chunk.columns.items()
    }
    return msgspec.structs.replace(chunk, times_ns=times[first], columns=merged)


def _last(values: Array, first: Array) -> Array:
    """The last known value of each part."""
    places = np.where(np.isnan(values), -1, np.arange(len(values)))
    last = np.maximum.reduceat(places, first)
    return np.where(last < first, np.nan, values[last])


def _sum(values: Array, first: Array) -> Array:
    is_known = ~np.isnan(values)
    found = np.add.reduceat(np.where(is_known, values, 0.0), first)
    return np.where(np.logical_or.reduceat(is_known, first), found, np.nan)


def _or(values: Array, first: Array) -> Array:
    is_known = np.isfinite(values)
    bits = np.bitwise_or.reduceat(np.where(is_known, values, 0.0).astype(np.int64), first)
    return np.where(np.logical_or.reduceat(is_known, first), bits.astype(np.float64), np.nan)


RULES: dict[str, Callable[[Array, Array], Array]] = {
    "max": np.fmax.reduceat,
    "min": np.fmin.reduceat,
    "last": _last,
    "sum": _sum,
    "or": _or,
}
