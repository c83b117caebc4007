"""What is left of a tensor in the format that it really is rounded to, where that is known: sums of its own, which
come with its readings only (`whatif.measure_in_use`). Nothing here imports torch: the server reads this too.
"""

from __future__ import annotations

from rangewatch.statistics.formats import BY_NAME, FORMATS, Format
from rangewatch.statistics.scales import ELEMENTS
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

OF_SCALED = {"scaled_input": "input", "scaled_weight": "weight", "scaled_grad_output": "grad_output"}
"""Kinds of operands that a library casts, and the kinds that a format is declared for."""


def of_operand(element: str, granularity: str, scale_format: str, history: int) -> Format | None:
    """The format of an operand that is cast to the `element` of this name (`scales.ELEMENTS`), where it is one of
    `formats.FORMATS`. How scales are rounded is not looked at: some recipes make powers of two of them.
    """
    scaling, _, shape = granularity.partition(" ")
    block = int(shape.removeprefix("1x")) if shape.startswith("1x") and shape[2:].isdigit() else 0
    if scaling not in ("tensor", "row") and not block:
        return None
    kind = "delayed" if history and scaling == "tensor" else scaling
    known = (each for each in FORMATS if (each.scaling, each.block) == (kind, block))
    is_alike = [each for each in known if each.element == ELEMENTS.get(element) and _has(each, scale_format)]
    return is_alike[0] if is_alike else None


def _has(each: Format, scale_format: str) -> bool:
    return each.scaling != "block" or each.scale == scale_format


def finer(each: Format) -> Format | None:
    """The format that `FINER` has for it."""
    return BY_NAME.get(FINER.get(each.name, ""))
