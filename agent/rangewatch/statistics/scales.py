"""How the scales of low precision fit what they scale: of operands that a library casts with scales of its own.

An operand is the input, the weight or the gradient of the output of a layer, cast to an FP8 or FP4 format for one
matrix product. Its scale is what a stored number is multiplied by to have the value again, whichever way its library
writes it.

Each is a statistic of its own, see `sparse`, in rows of the kinds `SCALED` of `wire.records`. Nothing here imports
torch: the server reads this too.
"""

from __future__ import annotations

from rangewatch.statistics.formats import E2M1, E2M3, E3M2, E4M3, E5M2, SCALE_BIAS, Element
from rangewatch.wire.records import Statistic

PEAK, HIGH, LOW, AGE = "scaled_peak", "scale_log2_high", "scale_log2_low", "amax_history_age"
COUNT, SATURATED, FLUSHED = "scaled_count", "scaled_saturated_count", "scaled_flushed_count"

MAXIMA: tuple[Statistic, ...] = (
    Statistic(
        PEAK, "ratio", "max", 0.0,
        "Largest magnitude over the largest that its scale has room for; above 1 it saturates. 0: not read.",
    ),
    Statistic(HIGH, "log2", "max", 0.0, f"{SCALE_BIAS} + log2 of the largest scale; 0: no scale was read."),
    Statistic(LOW, "log2", "max", 0.0, f"{SCALE_BIAS} - log2 of the least scale; 0: no scale was read."),
    Statistic(
        AGE, "entries", "max", 0.0,
        "Of delayed scaling, which entry of the amax history its scale is made of: 1 is the newest; 0: there is none.",
    ),
)  # fmt: skip
COUNTS: tuple[Statistic, ...] = (
    Statistic(COUNT, "elements", "sum", 0.0, "Elements that were finite and not zero before they were cast."),
    Statistic(SATURATED, "elements", "sum", 0.0, "Of these, those that became the largest number of the format."),
    Statistic(FLUSHED, "elements", "sum", 0.0, "Of these, those that became zero."),
)
ALL = MAXIMA + COUNTS

ELEMENTS: dict[str, Element] = {
    "E4M3": E4M3, "E5M2": E5M2, "E4M3FNUZ": Element(3, -7, 240.0), "E5M2FNUZ": Element(2, -15, 57344.0),
    "E3M2": E3M2, "E2M3": E2M3, "E2M1": E2M1,
}  # fmt: skip
"""By the names that events give them."""

OF_DTYPE = {
    "float8_e4m3fn": "E4M3", "float8_e5m2": "E5M2", "float8_e4m3fnuz": "E4M3FNUZ", "float8_e5m2fnuz": "E5M2FNUZ",
    "float4_e2m1fn_x2": "E2M1",
}  # fmt: skip
"""By torch's names of dtypes."""


def largest_kept(element: Element) -> tuple[float, bool]:
    """The magnitude from which on rounding (to nearest, ties to even) goes beyond the largest number, and whether it
    does so at that magnitude itself.
    """
    unit = 2.0 ** (element.largest_exponent - element.mantissa_bits)
    return element.largest + unit / 2, bool(int(element.largest / unit) % 2)


def largest_flushed(element: Element) -> float:
    """The largest magnitude that rounds to zero: half the least subnormal, a tie, goes to the even zero."""
    return 2.0 ** (element.smallest_exponent - element.mantissa_bits) / 2


TOO_SMALL = 4 / 3
"""Peaks from here on are of a scale that is too small: what MX's own rule leaves beyond the limit is always less."""
STALE = 1 / 16
"""Peaks up to here are of a stale scale, the margin of its recipe taken off, where it is made of an older entry of the
history than the newest."""
