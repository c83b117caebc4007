"""The exponent histogram: how many elements of a tensor lie in each power of two. Optional, taken with the full set.

Bin `e` counts the finite elements x with floor(log2(|x|)) == e: subnormals by their true exponent. Each bin is a
statistic of its own, a sum, see `sparse`. For each tensor and step, unless Inf was allowed and taken out, the bins +
zero_count + nan_count + inf_count are full_numel. On an accelerator, whose full set comes with every step, it is taken
where the host takes its own; one without float64 (MPS) takes none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rangewatch.wire.records import Statistic

Array = NDArray[Any]
Counts = NDArray[np.int64]

FIRST, LAST = -149, 127
"""The exponents of float32, from its smallest subnormal to its largest number: those of every shorter dtype too."""

BINS = LAST - FIRST + 1
PREFIX = "exponent_"


def column_name(exponent: int) -> str:
    """The statistic of a bin, such as `exponent_-24`."""
    return f"{PREFIX}{exponent}"


def exponent_of(name: str) -> int | None:
    """The bin of a statistic; None when it is no bin, whatever the name looks like."""
    return _BY_NAME.get(name)


_BY_NAME = {column_name(exponent): exponent for exponent in range(FIRST, LAST + 1)}


def _help(exponent: int) -> str:
    if exponent == FIRST:
        return f"Non-zero elements of a magnitude below 2^{FIRST + 1}; those of float64 may be far below."
    if exponent == LAST:
        return f"Finite elements of a magnitude from 2^{LAST}; those of float64 may be far above."
    return f"Elements of a magnitude from 2^{exponent} to below 2^{exponent + 1}."


ALL = tuple(
    Statistic(column_name(exponent), "elements", "sum", 0.0, _help(exponent)) for exponent in range(FIRST, LAST + 1)
)


def count(magnitudes: Array, mantissa_bits: int, smallest_normal: int) -> Counts:
    """(BINS,) counts of a binary floating format's bit patterns without their sign, (n,) unsigned.

    `smallest_normal` is the exponent of the format's smallest normal number. Exponents beyond `FIRST` and `LAST`, which
    only float64 has, are counted in these. Zero, NaN and Inf are in no bin.
    """
    fields = np.bincount((magnitudes >> magnitudes.dtype.type(mantissa_bits)).astype(np.intp))
    counts = np.zeros(BINS, np.int64)
    highest = (1 << (8 * magnitudes.dtype.itemsize - 1 - mantissa_bits)) - 1  # the field of NaN and Inf
    normal = fields[1:highest]
    _add(counts, smallest_normal + np.arange(len(normal)), normal)
    zero_count = magnitudes.size - np.count_nonzero(magnitudes)
    if len(fields) and fields[0] > zero_count:  # picking them out is slow, and seldom needed
        is_subnormal = (magnitudes < 1 << mantissa_bits) & (magnitudes != 0)
        exact = magnitudes[is_subnormal].astype(np.float64)  # less than 2^52
        exponents = np.frexp(exact)[1] - 1 + smallest_normal - mantissa_bits
        _add(counts, exponents, 1)
    return counts


def _add(counts: Counts, exponents: Array, more: Any) -> None:
    np.add.at(counts, np.clip(exponents, FIRST, LAST) - FIRST, more)
