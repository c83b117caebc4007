"""What is left of a tensor in the format that it really is rounded to, where that is known: sums of its own, which
come with its readings only (`whatif.measure_in_use`). Nothing here imports torch: the server reads this too.
"""

from __future__ import annotations

from rangewatch.statistics.formats import BY_NAME, Format
from rangewatch.wire.records import Statistic

PREFIX = "in_use_"
FINER = {"mxfp8_e5m2": "mxfp8_e4m3", "mxfp6_e3m2": "mxfp6_e2m3"}
"""Formats of blocks, and the one of as many bits that has one more of them for the mantissa: what it lacks in range,
the block's own scale makes up for."""

_SUMS = {
    "count": ("elements", "Elements of the sample that were finite and not zero."),
    "sum_sq": ("magnitude squared", "Sum of their squares."),
    "spread_sq": ("magnitude squared", "Sum of the squares of how far they are from the mean of their block, or row."),
    "flushed_count": ("elements", "In the format in use: elements that become zero."),
    "saturated_count": ("elements", "In the format in use: elements beyond the largest number there."),
    "error_sq": ("magnitude squared", "In the format in use: sum of the squared differences."),
    "relative_error": ("ratio", "In the format in use: sum of the differences over the elements' magnitudes."),
    "finer_error_sq": ("magnitude squared", "The same in the format with one more bit of mantissa, if there is one."),
    "finer_lost_count": ("elements", "Elements that would become zero or saturate there."),
}  # fmt: skip

ALL: tuple[Statistic, ...] = tuple(
    Statistic(PREFIX + name, unit, "sum", 0.0, help) for name, (unit, help) in _SUMS.items()
)
NAMES = tuple(_SUMS)


def finer(each: Format) -> Format | None:
    """The format that `FINER` has for it."""
    return BY_NAME.get(FINER.get(each.name, ""))
