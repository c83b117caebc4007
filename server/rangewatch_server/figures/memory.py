"""How much memory ranks hold when a step ends: of their device, by its allocator, or else of their host.

The most of any rank, and the least where there are several. Not every step has a sample: where none is known a line
goes on to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rangewatch_server.core import deadline
from rangewatch_server.figures.base import Figure, FigureData, Params, grid_of, line
from rangewatch_server.figures.lines import series_columns
from rangewatch_server.numerics.pyramid import FANOUT, SERIES_PART

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader

Array = NDArray[Any]

GIB = float(1 << 30)

DEVICE = {
    "allocated": "memory_allocated_bytes", "reserved": "memory_reserved_bytes", "peak": "memory_peak_bytes",
}  # fmt: skip
"""Lines of a run on accelerators, and the series that each is of."""

HOST = {"resident": "process_resident_bytes", "resident peak": "process_resident_peak_bytes"}
"""The same where no device's allocator was read."""

LEVEL = 2
"""Columns of 64 steps: an agent samples at most every 50 ms, and steps may be shorter."""

RECENT_STEPS = 4 * FANOUT**LEVEL
MOST_RANKS = 1_024
"""Ranks that are read one by one, evenly among all."""


def lines_of(run: RunReader) -> dict[str, str]:
    """Names of lines and series: those of the device where any rank has them."""
    return DEVICE if DEVICE["allocated"] in run.names().series else HOST


def build(run: RunReader, params: Params) -> FigureData:
    """The figure `memory` of docs/api.md."""
    cut = grid_of(run, params, merged=1)
    known = lines_of(run)
    data, x = [], cut.centres()
    for name, series in known.items():
        columns = series_columns(run, params, cut, series)
        present = columns["count"] > columns["nonfinite_count"]
        data.append(line(name, x[present], columns["max"][present] / GIB))
        if len(params.ranks) > 1 and len(data) == 1:
            least = line(f"{name}, least", x[present], columns["min"][present] / GIB)
    if len(params.ranks) > 1:
        data.append(least)
    is_device = known is DEVICE
    return data, cut.meta() | {"is_device": is_device, "by_rank": _ends(run, params, next(iter(known.values())))}


def _ends(run: RunReader, params: Params, series: str) -> dict[str, Any] | None:
    """The ranks that hold most and least in the newest steps shown; None of one rank, or where nothing is known."""
    stop = min(params.stop, -1 if run.last_step is None else run.last_step + 1)
    if len(params.ranks) < 2 or params.start >= stop:
        return None
    held = newest_by_rank(run, params.ranks, series, params.start, stop)
    known = np.flatnonzero(np.isfinite(held))
    if not len(known):
        return None
    most, least = int(known[held[known].argmax()]), int(known[held[known].argmin()])
    return {
        name: {"rank": params.ranks[at], "bytes": float(held[at])} for name, at in (("most", most), ("least", least))
    }


def newest_by_rank(run: RunReader, ranks: Sequence[int], series: str, start: int, stop: int) -> Array:
    """(ranks,) float64: the largest value of each rank's newest column of [start, stop) that has one, else NaN."""
    values = np.full(len(ranks), np.nan)
    row = run.names().series.get(series)
    low = max(start, stop - RECENT_STEPS)
    if row is None or low >= stop:
        return values
    for place in range(0, len(ranks), -(-len(ranks) // MOST_RANKS) or 1):
        deadline.check()
        columns = run.slice(SERIES_PART, [ranks[place]], LEVEL, low, stop, ("count", "max"), np.array([row])).columns
        known = columns["max"][0][columns["count"][0] > 0]
        if len(known) and np.isfinite(known[-1]):
            values[place] = known[-1]
    return values


FIGURE = Figure(
    name="memory", title="Memory", build=build, unit="GiB",
    data='"allocated", "reserved" and "peak" of the device, or "resident" and "resident peak" of the process: the most '
    'of any rank; of several ranks also the first of these with ", least"',
    help="Memory that ranks held when a step ended: of the device by torch's allocator, of a run on CPUs the pages of "
    "the process in its host's memory.",
)  # fmt: skip
