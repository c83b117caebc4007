"""How far two tensors are from each other by their sketches, which ranks have added up: see `statistics.sketches`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.statistics.sketches import (
    ALL,
    HALF,
    HIGH,
    LEAST_999,
    LOW,
    MINUS,
    NUMEL,
    PLUS,
    RANGE_95,
    SUM_SQ,
    WHOLE,
)

Array = NDArray[Any]
Columns = Mapping[str, Array]

COLUMNS = tuple(each.name for each in ALL)
MOST = 1e300
EXACT = 2.0**53
"""A half of a hash that has added up to more, as of two million parts of ranks and steps in a row, has lost bits."""

LEAST = 5e-324
"""Of what differs in its bits, though the projections say nothing: -0 and 0."""


def is_whole(columns: Columns) -> Array:
    """Where the parts of all ranks are there, as many elements as the whole has, once or several times; and the hash
    is exact.
    """
    whole, numel = columns[WHOLE], columns[NUMEL]
    is_exact = np.maximum(columns[HIGH], columns[LOW]) < EXACT
    return is_exact & (whole > 0) & (numel > 0) & (numel % np.maximum(whole, 1) == 0)


def distance(here: Columns, there: Columns) -> Array:
    """The estimated distance of two tensors over the greater of their norms: 0 where they are equal in all bits, and
    only there; NaN where there are no two whole sketches of the same elements.
    """
    both = is_whole(here) & is_whole(there)
    both &= (here[WHOLE] == there[WHOLE]) & (here[NUMEL] == there[NUMEL])
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        squares = [
            np.square((here[plus] - here[minus]) - (there[plus] - there[minus]))
            for plus, minus in zip(PLUS, MINUS, strict=True)
        ]
        far = np.sqrt(np.mean(squares, axis=0)) / np.sqrt(np.maximum(here[SUM_SQ], there[SUM_SQ]))
    far = np.maximum(np.nan_to_num(far, nan=0.0, posinf=MOST), LEAST)
    return np.where(both, np.where(_hash(here) == _hash(there), 0.0, far), np.nan)


def is_beyond(distance: Array, allowed: Array) -> Array:
    """Whether the distance is more than what is allowed, as good as certainly: where nothing is, any bit counts."""
    with np.errstate(invalid="ignore"):
        return np.where(allowed > 0, LEAST_999 * distance > allowed, distance > 0)


class Shown(msgspec.Struct, frozen=True):
    """Of a tensor that differs: the estimate, and between what it is in 95 of 100 cases."""

    is_equal: bool
    distance: float
    low: float
    high: float
    allowed: float | None
    """None: no run of the noise has sketches of it, so that no distance is a difference."""


def shown(distance: float, allowed: float) -> dict[str, Any] | None:
    """As it is answered; None where there is no sketch."""
    if np.isnan(distance):
        return None
    low, high = (distance * each for each in RANGE_95)
    limit = float(allowed) if np.isfinite(allowed) else None
    return msgspec.structs.asdict(Shown(bool(distance == 0), distance, low, high, limit))


def _hash(columns: Columns) -> Array:
    high, low = (np.minimum(columns[name], EXACT).astype(np.uint64) for name in (HIGH, LOW))
    return high * np.uint64(HALF) + low
