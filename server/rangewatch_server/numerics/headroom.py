"""Headroom and floor room in bits, and the state of a cell, from merged statistics. Pure numpy, no I/O.

headroom = log2(max_finite / amax)          0 bits: at the largest number the dtype holds
floor room = log2(amin / smallest_normal)   0 bits: at the smallest normal number, below it subnormal
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rangewatch.statistics.dtype_limits import LIMITS, DtypeLimits

Array = NDArray[Any]

UNKNOWN = DtypeLimits("unknown", float("nan"), float("nan"), float("nan"))
SATURATED_BITS = 1.0


class State(IntEnum):
    """What a cell shows; docs/api.md has the table."""

    VALUE = 0
    SATURATED = 1
    INF = 2
    NAN = 3
    ZERO = 4
    NOT_OBSERVED = 5
    STALE = 6
    SCALE_STALE = 7
    SCALE_TOO_SMALL = 8


STATE_NAMES = [state.name.lower() for state in State]

# Which of two states is the worse one to know about, when several cells become one.
SEVERITY = np.zeros(len(State), np.int8)
for _rank, _state in enumerate(
    (
        State.NOT_OBSERVED, State.STALE, State.ZERO, State.VALUE, State.SATURATED, State.SCALE_STALE,
        State.SCALE_TOO_SMALL, State.INF, State.NAN,
    )
):  # fmt: skip
    SEVERITY[_state] = _rank
BY_SEVERITY = np.argsort(SEVERITY).astype(np.uint8)


def limits_of(dtype: str) -> DtypeLimits:
    """Limits of a dtype by torch's name for it; NaN in every field for a dtype this server does not know."""
    return LIMITS.get(dtype, UNKNOWN)


def max_finite_log2(dtypes: Sequence[str]) -> Array:
    """(t,) float64: log2 of each dtype's largest finite number."""
    known = {dtype: limits_of(dtype).max_finite for dtype in set(dtypes)}
    return np.log2(np.array([known[dtype] for dtype in dtypes], np.float64))


def headroom_bits(amax: Array, log2_max: Array) -> Array:
    """(t, n) float32 bits; +Inf where amax is 0 (nothing finite and non-zero was seen)."""
    with np.errstate(divide="ignore", over="ignore"):
        bits = np.subtract(log2_max.astype(np.float32)[:, None], np.log2(amax.astype(np.float32, copy=False)))
    # float32 cannot hold a float64 magnitude past 3e38: those rows are rare, and taken exactly.
    wide = log2_max > 128
    if wide.any():
        with np.errstate(divide="ignore"):
            bits[wide] = log2_max[wide, None] - np.log2(amax[wide].astype(np.float64))
    return np.maximum(bits, np.float32(0), dtype=np.float32)


def states(columns: Mapping[str, Array], bits: Array) -> Array:
    """(t, n) uint8 `State` of each cell, from call_count, nan_count, inf_count and `headroom_bits`' answer."""
    state = np.where(bits < SATURATED_BITS, np.uint8(State.SATURATED), np.uint8(State.VALUE))
    state[np.isposinf(bits)] = State.ZERO
    _mark(state, columns["inf_count"], State.INF)
    _mark(state, columns["nan_count"], State.NAN)
    calls = columns["call_count"]
    if not _is_single(calls) or calls.flat[0] == 0:
        state[calls == 0] = State.NOT_OBSERVED
    return state


def _mark(state: Array, counts: Array, value: State) -> None:
    if not _is_single(counts) or counts.flat[0] > 0:
        state[counts > 0] = value


def _is_single(values: Array) -> bool:
    return values.size > 0 and all(stride == 0 for stride in values.strides)


def pool(bits: Array, state: Array, edges: Array, axis: int) -> tuple[Array, Array]:
    """The worst of each group of cells along `axis`; `edges` are the groups' first positions, ascending from 0."""
    least = np.fmin.reduceat(bits, edges, axis=axis)  # fmin: a dtype without known limits has NaN
    worst = BY_SEVERITY[np.maximum.reduceat(SEVERITY[state], edges, axis=axis)]
    return least, worst
