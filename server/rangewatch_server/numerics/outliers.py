"""Which of many equal things stand out: a robust score that a few bad ones cannot hide themselves in. Pure."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

Worst = Literal["most", "least"]

OUTLYING = 6.0
"""From this score on a value stands out: of a thousand normally distributed ones less than one in a million does."""
TO_SIGMA = 1.4826
"""A normal distribution's standard deviation, in its median absolute deviations."""
LEAST_COUNT = 3
"""Of fewer known values none can be said to be the odd one."""


def robust_scores(values: Array, floor: float, worst: Worst = "most") -> Array:
    """(n,) float64: how far each of `values` (n,), NaN where unknown, lies on its bad side of their median.

    `(value - median) / max(1.4826 * MAD, floor)`; the other way round where the `worst` are the least. MAD is the
    median of the distances to the median, so that one far value moves neither. `floor`, greater than 0, in the
    values' unit: what is no difference. Values that are equal have 0 each; unknown ones, and few ones, NaN.
    """
    scores = np.full(len(values), np.nan)
    known = np.isfinite(values)
    if np.count_nonzero(known) < LEAST_COUNT:
        return scores
    median = float(np.median(values[known]))
    spread = TO_SIGMA * float(np.median(np.abs(values[known] - median)))
    distance = values[known] - median if worst == "most" else median - values[known]
    scores[known] = distance / max(spread, floor)
    return scores


def outlying(scores: Array, most: int) -> Array:
    """(k,) places of those that stand out, at most so many, the farthest first."""
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")
    return order[: min(most, int(np.count_nonzero(scores >= OUTLYING)))]
