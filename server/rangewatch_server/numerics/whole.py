"""Whole numbers from floats that were merged from anything: `int` raises for NaN and for Inf, which sums may be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

MOST = 2.0**53
"""What float64 counts up to by one."""


def whole(value: float) -> int:
    """The number without its fraction, within -`MOST` and `MOST`; 0 for NaN."""
    return 0 if math.isnan(value) else int(min(max(value, -MOST), MOST))


def whole_sum(values: Any) -> int:
    """Of all `values`, which may add up to Inf or NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        return whole(float(np.sum(values)))


def whole_or_none(value: float) -> int | None:
    """The same, but None for what is not finite."""
    return whole(value) if math.isfinite(value) else None
