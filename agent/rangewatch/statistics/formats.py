"""The smaller formats that a tensor could be stored in, and the sums that say what would be left of it there.

Each sum of `ALL` is a statistic of its own, so that it merges over steps and ranks, is stored and is read like any
other; they come with what-if readings only (`whatif.measure`). Nothing here imports torch: the server reads this too.

Sources: OCP 8-bit Floating Point Specification 1.0 (E4M3, E5M2), OCP Microscaling Formats (MX) Specification 1.0
(MXFP8, MXFP6, MXFP4 and their scales), NVIDIA's NVFP4 (blocks of 16, scales in E4M3 below one of the tensor's).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rangewatch.wire.records import Statistic

Scaling = Literal["none", "tensor", "delayed", "row", "block"]


class Element(msgspec.Struct, frozen=True):
    """A binary floating format. `smallest_exponent` is that of its smallest normal number, 2^smallest_exponent."""

    mantissa_bits: int
    smallest_exponent: int
    largest: float

    @property
    def largest_exponent(self) -> int:
        """Of the largest power of two that it holds."""
        return int(self.largest).bit_length() - 1


E4M3 = Element(3, -6, 448.0)
E5M2 = Element(2, -14, 57344.0)
E3M2 = Element(2, -2, 28.0)
E2M3 = Element(3, 0, 7.5)
E2M1 = Element(1, 0, 6.0)
FLOAT16 = Element(10, -14, 65504.0)
BFLOAT16 = Element(7, -126, 2.0**127 * (2 - 2.0**-7))


class Format(msgspec.Struct, frozen=True):
    """An element with how it is scaled: not at all, by the tensor's `amax` of this step or (`delayed`) of the step
    before, by a row's (its last dimension), or by that of `block` neighbours in a row.
    """

    name: str
    title: str
    element: Element
    scaling: Scaling = "none"
    block: int = 0
    scale: Literal["float32", "e8m0", "e4m3"] = "float32"
    """What the scales themselves are stored in: E8M0 holds powers of two only."""


FORMATS = (
    Format("bfloat16", "bfloat16", BFLOAT16),
    Format("float16", "float16", FLOAT16),
    Format("e4m3_tensor", "E4M3 by tensor", E4M3, "tensor"),
    Format("e4m3_delayed", "E4M3 by tensor, delayed", E4M3, "delayed"),
    Format("e4m3_row", "E4M3 by row", E4M3, "row"),
    Format("e5m2_tensor", "E5M2 by tensor", E5M2, "tensor"),
    Format("e5m2_delayed", "E5M2 by tensor, delayed", E5M2, "delayed"),
    Format("e5m2_row", "E5M2 by row", E5M2, "row"),
    Format("mxfp8_e4m3", "MXFP8 E4M3", E4M3, "block", 32, "e8m0"),
    Format("mxfp8_e5m2", "MXFP8 E5M2", E5M2, "block", 32, "e8m0"),
    Format("mxfp6_e2m3", "MXFP6 E2M3", E2M3, "block", 32, "e8m0"),
    Format("mxfp6_e3m2", "MXFP6 E3M2", E3M2, "block", 32, "e8m0"),
    Format("mxfp4", "MXFP4", E2M1, "block", 32, "e8m0"),
    Format("nvfp4", "NVFP4", E2M1, "block", 16, "e4m3"),
)
BY_NAME = {each.name: each for each in FORMATS}

PREFIX = "whatif_"
SCALE_BIAS = 256  # added to log2 of a scale, which float32 has from 2^-149: no statistic is negative
COUNT, SUM_SQ = f"{PREFIX}count", f"{PREFIX}sum_sq"

OF_EACH = {
    "flushed_count": ("elements", "that would become zero."),
    "saturated_count": ("elements", "beyond the largest number there, which they would become."),
    "error_sq": ("magnitude squared", "sum of the squared differences."),
    "relative_error": ("ratio", "sum of the differences over the elements' magnitudes."),
}
OF_SCALED = {
    "scale_count": ("scales", "scales, of tensors, rows or blocks that are not all zero."),
    "scale_log2": ("log2", "sum of 256 + log2 of the scales: what a stored number is multiplied by."),
    "scale_log2_sq": ("log2 squared", "sum of the squares of 256 + log2 of the scales."),
}


def column(name: str, what: str) -> str:
    """The statistic of a format, such as `whatif_mxfp4_flushed_count`."""
    return f"{PREFIX}{name}_{what}"


def _of(each: Format) -> tuple[Statistic, ...]:
    sums = OF_EACH if each.scaling == "none" else OF_EACH | OF_SCALED
    return tuple(
        Statistic(column(each.name, what), unit, "sum", 0.0, f"In {each.title}: {help}")
        for what, (unit, help) in sums.items()
    )


ALL: tuple[Statistic, ...] = (
    Statistic(COUNT, "elements", "sum", 0.0, "Elements of the sample that were finite and not zero."),
    Statistic(SUM_SQ, "magnitude squared", "sum", 0.0, "Sum of their squares."),
    *(statistic for each in FORMATS for statistic in _of(each)),
)
POSITIONS = {each.name: position for position, each in enumerate(ALL)}
