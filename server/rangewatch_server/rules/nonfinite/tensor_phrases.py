"""Words about tensors that several parts of the report on the first NaN or Inf use."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from rangewatch_server.numerics.headroom import limits_of

NEAR_BITS = 24.0
"""Headroom above which a limit is too far away to be mentioned."""


class Counted(Protocol):
    """What has counts of NaN and Inf."""

    @property
    def nan_count(self) -> int: ...
    @property
    def inf_count(self) -> int: ...
    @property
    def numel(self) -> int: ...


def counts(counted: Counted) -> str:
    """Such as "3 NaN of 64 elements"."""
    both = ((counted.nan_count, "NaN"), (counted.inf_count, "Inf"))
    held = " and ".join(f"{count} {name}" for count, name in both if count) or "no NaN or Inf"
    return f"{held} of {counted.numel} elements"


def name_of(fqn: str) -> str:
    """A module's name; the whole model has none of its own."""
    return fqn or "the whole model"


def headroom(dtype: str, amax: float) -> float:
    """Bits below the dtype's limit; negative above it, Inf for 0, NaN for a dtype that is not known."""
    with np.errstate(divide="ignore"):
        return float(np.log2(limits_of(dtype).max_finite / np.float64(amax)))


def range_text(dtype: str, amax: float) -> str:
    """Such as "amax 6.27e+04, 0.06 bits below float16's limit"."""
    return f"amax {amax:.3g}, {limit_text(dtype, amax)}"


def limit_text(dtype: str, amax: float) -> str:
    """The second half of that; only the dtype where its limit is far away."""
    bits = headroom(dtype, amax)
    if not bits < NEAR_BITS:
        return f"far below {dtype}'s limit" if np.isfinite(bits) else dtype
    return f"{abs(bits):.2f} bits {'below' if bits >= 0 else 'above'} {dtype}'s limit"


def several(names: list[str], most: int = 3) -> str:
    """The first few, and how many more."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
