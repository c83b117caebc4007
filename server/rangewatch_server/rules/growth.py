"""For how many steps something has grown, and how fast, up to its last point. Pure numpy, no I/O."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch_server.rules.trend import FEWEST, fit

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
