"""A straight line through noisy points, with its uncertainty, and when it reaches a limit. Pure numpy, no I/O.

Theil-Sen: the slope is the median of the slopes between all pairs of points, so that up to 29 % of the points may lie
anywhere (single spikes do not move it). Its interval is the one of Kendall's rank test (Sen, 1968), widened for points
that follow each other closely in time and so say less than as many independent ones.

For how many steps something has grown, and how fast, up to its last point. Pure numpy, no I/O.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

Z = 2.58
"""Standard deviations of the interval: 99 %."""

MAD = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""

FEWEST = 4
"""Points below which no line is fitted."""


class Trend(msgspec.Struct, frozen=True):
    """`slope` a step, between `low` and `high` with 99 %; `level`: the line at the last point; `scatter` about it, as a
    standard deviation; of `count` points at the steps `first` to `last`."""

    slope: float
    low: float
    high: float
    level: float
    scatter: float
    count: int
    first: int
    last: int

    @property
    def growth(self) -> float:
        """What the line rose by from the first to the last point."""
        return self.slope * (self.last - self.first)


class Crossing(msgspec.Struct, frozen=True):
    """Steps after the last point: `about`, not before `earliest`, and not later than `latest` (Inf: perhaps never)."""

    about: float
    earliest: float
    latest: float


def fit(steps: Array, values: Array) -> Trend | None:
    """The line through (n,) finite values at (n,) ascending steps; None where there are fewer than `FEWEST`."""
    count = len(steps)
    if count < FEWEST:
        return None
    x, y = np.asarray(steps, np.float64), np.asarray(values, np.float64)
    later, earlier = np.tril_indices(count, -1)
    slopes = np.sort((y[later] - y[earlier]) / (x[later] - x[earlier]))
    slope = float(np.median(slopes))
    offsets = y - slope * x
    offset = float(np.median(offsets))
    rest = offsets - offset
    low, high = _interval(slopes, count, rest)
    scatter = MAD * float(np.median(np.abs(rest)))
    return Trend(slope, low, high, offset + slope * float(x[-1]), scatter, count, int(x[0]), int(x[-1]))


def _interval(slopes: Array, count: int, rest: Array) -> tuple[float, float]:
    spread = Z * np.sqrt(count * (count - 1) * (2 * count + 5) / 18) * _repetition(rest)
    low = int(np.floor((len(slopes) - spread) / 2))
    high = int(np.ceil((len(slopes) + spread) / 2))
    return (
        float(slopes[low]) if low >= 0 else -np.inf,
        float(slopes[high]) if high < len(slopes) else np.inf,
    )


def _repetition(rest: Array) -> float:
    """By how much the interval is wider than that of independent points: 1 where the rest is white noise.

    A rest of rounding errors repeats nothing that matters.
    """
    power = float(np.dot(rest, rest))
    if power <= 1e-12 * len(rest):
        return 1.0
    repeated = float(np.clip(np.dot(rest[1:], rest[:-1]) / power, 0.0, 0.9))
    return float(np.sqrt((1 + repeated) / (1 - repeated)))


def crossing(trend: Trend, limit: float, margin: float = 0.0) -> Crossing:
    """When the line is within `margin` of `limit` from below, margin being what noise adds, and at the latest when it
    reaches it; 0: it has.

    All are Inf where the line does not rise.
    """
    left = max(0.0, limit - trend.level)
    near = max(0.0, left - margin)
    if trend.slope <= 0:
        return Crossing(np.inf, np.inf, np.inf)
    latest = left / trend.low if trend.low > 0 else np.inf
    earliest = near / trend.high if trend.high > 0 and np.isfinite(trend.high) else 0.0
    return Crossing(near / trend.slope, earliest, latest)


LEAST_BITS = 1.0
"""What it must have grown by in all."""

CLEAR = 4.0
"""And by how many times the scatter about the line."""


class Growth(msgspec.Struct, frozen=True):
    """`bits_a_step` over the last `steps` steps."""

    bits_a_step: float
    steps: int

    @property
    def bits(self) -> float:
        """What it grew by in all."""
        return self.bits_a_step * self.steps


def growing(steps: NDArray[np.int64], bits: NDArray[np.float64]) -> Growth | None:
    """The growth that (n,) log2 magnitudes at (n,) ascending steps end with; None where they end with none.

    Before it they may have been at any one level: the break is where a level and a line fit best.
    """
    known = np.isfinite(bits)
    x, y = steps[known], bits[known]
    best: tuple[float, Growth | None] = (np.inf, None)
    for start in range(len(x) - FEWEST + 1):
        line = fit(x[start:], y[start:])
        if line is None:
            continue
        rest = np.abs(y[start:] - (line.level + line.slope * (x[start:] - x[-1]))).sum()
        level = y[:start]
        cost = float(rest + (np.abs(level - np.median(level)).sum() if start else 0.0))
        is_clear = line.low > 0 and line.growth >= CLEAR * line.scatter
        # Few points have no interval; that each is above all before it is chance once in 24 times, or less.
        is_growth = line.growth >= LEAST_BITS and (is_clear or bool((np.diff(y[start:]) > 0).all()))
        if cost < best[0] - 1e-9:
            best = cost, Growth(line.slope, line.last - line.first) if is_growth else None
    return best[1]
