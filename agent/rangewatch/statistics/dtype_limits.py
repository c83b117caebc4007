"""What each floating dtype can hold, without torch (the server reads headroom by it too).

Sources: IEEE 754-2019 for float16/32/64; bfloat16 as the upper half of float32; float8 after Micikevicius et al.,
"FP8 formats for deep learning", 2022, table 1 (e4m3fn has no Inf: its overflow is NaN or saturation).
A test compares every row with `torch.finfo`.
"""

from __future__ import annotations

import msgspec


class DtypeLimits(msgspec.Struct, frozen=True):
    """Largest finite, smallest normal and smallest subnormal magnitude of a dtype."""

    dtype: str
    max_finite: float
    smallest_normal: float
    smallest_subnormal: float


def _ieee(dtype: str, exponent_max: int, mantissa_bits: int, exponent_min: int) -> DtypeLimits:
    max_finite = (2.0 - 2.0**-mantissa_bits) * 2.0**exponent_max
    return DtypeLimits(dtype, max_finite, 2.0**exponent_min, 2.0 ** (exponent_min - mantissa_bits))


LIMITS: dict[str, DtypeLimits] = {
    limits.dtype: limits
    for limits in (
        _ieee("float64", 1023, 52, -1022),
        _ieee("float32", 127, 23, -126),
        _ieee("float16", 15, 10, -14),
        _ieee("bfloat16", 127, 7, -126),
        DtypeLimits("float8_e4m3fn", 448.0, 2.0**-6, 2.0**-9),
        DtypeLimits("float8_e4m3fnuz", 240.0, 2.0**-7, 2.0**-10),
        DtypeLimits("float8_e5m2", 57344.0, 2.0**-14, 2.0**-16),
        DtypeLimits("float8_e5m2fnuz", 57344.0, 2.0**-15, 2.0**-17),
    )
}
