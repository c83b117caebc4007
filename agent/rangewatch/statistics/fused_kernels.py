"""The fused kernels, in Triton: one read of a tensor gives all its statistics, merged into its row where that lies.

Nothing but the kernels: `fused.py` says what their arguments are. The bit patterns of floating numbers without their
sign are whole numbers in the order of the magnitudes, so every count and extreme is integer arithmetic: exact, and
NaN is a large number that loses no comparison. Narrow dtypes are taken as the float32 of the same value.

What is common costs least (zeros, subnormals), and what is rare is looked at again: a program that met NaN, Inf, or
magnitudes whose squares do not fit float32, reads its own part a second time and squares in float64.
"""

# mypy: disable-error-code="import-untyped, import-not-found, no-untyped-def, untyped-decorator, misc, valid-type"

from __future__ import annotations

from collections.abc import Callable

import triton
import triton.language as tl

from rangewatch.statistics import exponents

_BINS = tl.constexpr(exponents.BINS)
_FIRST = tl.constexpr(exponents.FIRST)
_HISTOGRAM = tl.constexpr(512)
"""Bins of `tl.histogram`: a power of two. The last takes what has no exponent, for it knows no bounds on a device."""


def current_stream_of() -> Callable[[int], int]:
    """What tells a device's current stream, given its index. Raises when Triton has no driver for this machine."""
    return triton.runtime.driver.active.get_current_stream


@triton.jit(do_not_specialize=("address", "numel", "repeats", "row", "calls", "inner", "outer_stride", "inner_stride"))
def measure(
    address: tl.int64, numel: tl.int64, repeats: tl.int64, row: tl.int64, calls: tl.int64,
    inner: tl.int64, outer_stride: tl.int64, inner_stride: tl.int64,
    IS_DENSE: tl.constexpr, IS_ALIGNED: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    """Merge `numel` elements, each standing for `repeats`, into `row`. Programs share them tile by tile.

    They lie one after another, or (not IS_DENSE) `inner` of them `inner_stride` apart in rows `outer_stride` apart.
    `calls` is 0, or 1 for a row with two more columns, of calls and of elements: of what a CUDA graph replays no host
    can keep account.
    """
    first, step = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    layout = (inner, outer_stride, inner_stride)
    _measure(address, numel, repeats, row, first, step, layout, IS_DENSE, IS_ALIGNED, FORMAT)
    calls = tl.where(first == 0, calls, 0)
    _add(row, 7, calls, calls)
    _add(row, 8, calls * numel, repeats)


@triton.jit(do_not_specialize=("address", "numel", "repeats", "row", "inner", "outer_stride", "inner_stride"))
def count_exponents(
    address: tl.int64, numel: tl.int64, repeats: tl.int64, row: tl.int64,
    inner: tl.int64, outer_stride: tl.int64, inner_stride: tl.int64,
    IS_DENSE: tl.constexpr, IS_ALIGNED: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    """Add the histogram of `exponents.count` to `row`, (BINS,) int64. The other arguments are those of `measure`."""
    LANES: tl.constexpr = FORMAT.lanes
    first, step = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    layout = (inner, outer_stride, inner_stride)
    pointer = _pointer(address, IS_ALIGNED, FORMAT)
    counts = tl.zeros([_HISTOGRAM], tl.int32)
    whole_tiles = numel // LANES
    for tile in range(first, whole_tiles, step):
        bits = _magnitudes(pointer, tile * LANES, numel, layout, IS_DENSE, False, FORMAT)
        counts += tl.histogram(_exponent_bins(bits, FORMAT), _HISTOGRAM)
    if (whole_tiles % step == first) & (numel % LANES > 0):
        bits = _magnitudes(pointer, whole_tiles * LANES, numel, layout, IS_DENSE, True, FORMAT)
        counts += tl.histogram(_exponent_bins(bits, FORMAT), _HISTOGRAM)  # past the end are zeros, in no bin
    bins = tl.arange(0, _HISTOGRAM)
    cells = row.to(tl.pointer_type(tl.int64)) + bins
    tl.atomic_add(cells, counts.to(tl.int64) * repeats, mask=(bins < _BINS) & (counts > 0), sem="relaxed")


@triton.jit(do_not_specialize=("table",))
def measure_parts(table: tl.int64, IS_ALIGNED: tl.constexpr, FORMAT: tl.constexpr):
    """Parts of many dense tensors, one a program. `table`: (programs, 4) of address, numel, repeats and row."""
    part = table.to(tl.pointer_type(tl.int64)) + tl.program_id(0) * 4
    address, numel, repeats, row = tl.load(part), tl.load(part + 1), tl.load(part + 2), tl.load(part + 3)
    zero = numel * 0
    _measure(address, numel, repeats, row, zero, zero + 1, (zero, zero, zero), True, IS_ALIGNED, FORMAT)


@triton.jit
def _measure(
    address, numel, repeats, row, first, step, layout,
    IS_DENSE: tl.constexpr, IS_ALIGNED: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    LANES: tl.constexpr = FORMAT.lanes
    TILE: tl.constexpr = LANES * FORMAT.unroll
    pointer = _pointer(address, IS_ALIGNED, FORMAT)
    GROUPS: tl.constexpr = LANES // FORMAT.vector if IS_DENSE and IS_ALIGNED else LANES
    counts = tl.zeros([GROUPS], tl.int32)
    squares = tl.zeros([GROUPS], tl.float64)
    if FORMAT.is_wide:
        largest = tl.zeros([GROUPS], tl.int64)
        least = tl.full([GROUPS], -1, tl.int64).to(tl.uint64, bitcast=True)
    else:
        largest = tl.zeros([GROUPS], tl.int32)
        least = tl.full([GROUPS], -1, tl.int32).to(tl.uint32, bitcast=True)
    state = (largest, least, counts, counts, squares)
    whole_tiles = numel // TILE
    for tile in range(first, whole_tiles, step):
        state = _add_tile(state, pointer, tile * TILE, numel, layout, IS_DENSE, False, FORMAT)
    padding = 0
    if (whole_tiles % step == first) & (numel % TILE > 0):
        state = _add_tile(state, pointer, whole_tiles * TILE, numel, layout, IS_DENSE, True, FORMAT)
        padding = TILE - (numel % TILE).to(tl.int32)
    largest, least, zeros, lows, squares = state
    most, least_less_one = tl.max(largest), tl.min(least)
    counts = tl.sum((lows.to(tl.int64) << 32) + zeros.to(tl.int64))
    zero_count = (counts & 0xFFFFFFFF) - padding
    subnormal_count = (counts >> 32) - padding - zero_count
    sum_sq = tl.sum(squares) * (1.0 / (FORMAT.sum_scale * FORMAT.sum_scale))
    nan_count, inf_count = zero_count * 0, zero_count * 0
    if (most >= FORMAT.most) | ((most > 0) & (most < FORMAT.least)):
        most, nan_count, inf_count, sum_sq = _read_again(
            pointer, numel, first, step, layout, nan_count, IS_DENSE, FORMAT
        )
    _merge_extremes(row, most, least_less_one, FORMAT)
    _add(row, 2, nan_count, repeats)
    _add(row, 3, inf_count, repeats)
    _add(row, 4, zero_count, repeats)
    _add(row, 5, subnormal_count, repeats)
    _add(row, 6, sum_sq, repeats)


@triton.jit
def _pointer(address, IS_ALIGNED: tl.constexpr, FORMAT: tl.constexpr):
    if FORMAT.itemsize == 8:
        pointer = address.to(tl.pointer_type(tl.int64))
    elif FORMAT.itemsize == 4:
        pointer = address.to(tl.pointer_type(tl.int32))
    elif FORMAT.itemsize == 2:
        pointer = address.to(tl.pointer_type(tl.int16))
    else:
        pointer = address.to(tl.pointer_type(tl.int8))
    if IS_ALIGNED:
        pointer = tl.multiple_of(pointer, 16)  # so that they are read 16 bytes at a time
    return pointer


@triton.jit
def _add_tile(
    state, pointer, start, numel, layout, IS_DENSE: tl.constexpr, IS_LAST: tl.constexpr, FORMAT: tl.constexpr
):
    LANES: tl.constexpr = FORMAT.lanes
    UNROLL: tl.constexpr = FORMAT.unroll
    NORMAL: tl.constexpr = FORMAT.normal
    largest, least, zeros, lows, squares = state
    GROUPS: tl.constexpr = squares.shape[0]
    # Squares are of values times `sum_scale`, summed over a tile in the values' precision and from there in float64.
    # In float32 that is a relative error of at most (`unroll` + `vector` + 1) * 2^-24, below 8e-7, as long as no second
    # look is needed: the largest value is above 2^-72 (what is lost of the smallest squares, 2^-150 each, is then less
    # than that of 2^30 elements) and below 2^37 (above, a sum may exceed float32).
    tile_squares = tl.zeros([GROUPS], tl.float64 if FORMAT.is_wide else tl.float32)
    for i in tl.static_range(UNROLL):
        bits = _magnitudes(pointer, start + i * LANES, numel, layout, IS_DENSE, IS_LAST, FORMAT)
        bits = tl.reshape(bits, [GROUPS, LANES // GROUPS])  # a group is what one thread has loaded at once
        largest = tl.maximum(largest, tl.max(bits, 1))
        less_one = (bits - 1).to(least.dtype, bitcast=True)  # zero becomes the largest there is
        least = tl.minimum(least, tl.min(less_one, 1))
        zeros += tl.sum(_is_below(bits, 1), 1)  # also what the last tile has past the end
        lows += tl.sum(_is_below(bits, NORMAL), 1)
        values = bits.to(tile_squares.dtype, bitcast=True) * FORMAT.sum_scale
        tile_squares += tl.sum(values * values, 1)
    return largest, least, zeros, lows, squares + tile_squares.to(tl.float64)


@triton.jit
def _magnitudes(pointer, start, numel, layout, IS_DENSE: tl.constexpr, IS_LAST: tl.constexpr, FORMAT: tl.constexpr):
    lanes = tl.arange(0, FORMAT.lanes)
    if IS_DENSE:
        places = pointer + start + lanes
    else:
        inner, outer_stride, inner_stride = layout  # fewer than 2^31 elements: 64-bit division is slow
        index = (start + lanes).to(tl.int32)
        outer = index // inner.to(tl.int32)
        within = index - outer * inner.to(tl.int32)
        places = pointer + outer.to(tl.int64) * outer_stride + within.to(tl.int64) * inner_stride
    patterns = tl.load(places, mask=lanes < numel - start, other=0) if IS_LAST else tl.load(places)
    if FORMAT.is_wide:
        bits = patterns & FORMAT.mask
    else:
        bits = (patterns.to(tl.int32) & FORMAT.mask) << FORMAT.shift
        if FORMAT.scale != 1.0:
            bits = (bits.to(tl.float32, bitcast=True) * FORMAT.scale).to(tl.int32, bitcast=True)
    return bits


@triton.jit
def _exponent_bins(bits, FORMAT: tl.constexpr):
    if FORMAT.is_wide:  # those beyond float32's are in the first bin and the last
        bins = tl.minimum(tl.maximum((bits >> 52).to(tl.int32) - (1023 + _FIRST), 0), _BINS - 1)
    else:
        # A subnormal's bits are a whole number below 2^23: float32 holds it, and with it the place of its highest bit.
        as_number = (bits.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
        bins = tl.where(bits < (1 << 23), as_number, (bits >> 23) - (127 + _FIRST))
    return tl.where((bits > 0) & (bits < FORMAT.nonfinite), bins, _HISTOGRAM - 1)


@triton.jit
def _is_below(bits, bound: tl.constexpr):
    # The sign of the difference, as 0 or 1: the shift and the sum that follows are one instruction.
    if bits.dtype == tl.int64:
        sign = (bits - bound).to(tl.uint64, bitcast=True) >> 63
    else:
        sign = (bits - bound).to(tl.uint32, bitcast=True) >> 31
    return sign.to(tl.int32)


@triton.jit
def _read_again(pointer, numel, first, step, layout, no_count, IS_DENSE: tl.constexpr, FORMAT: tl.constexpr):
    LANES: tl.constexpr = FORMAT.lanes
    TILE: tl.constexpr = LANES * FORMAT.unroll
    nan_count, nonfinite_count, sum_sq = no_count, no_count, no_count.to(tl.float64)
    most = no_count.to(tl.int64 if FORMAT.is_wide else tl.int32)
    for tile in range(first, numel // TILE + 1, step):
        for i in range(FORMAT.unroll):
            bits = _magnitudes(pointer, tile * TILE + i * LANES, numel, layout, IS_DENSE, True, FORMAT)
            is_finite = bits < FORMAT.nonfinite
            finite = tl.where(is_finite, bits, 0)
            values = _float64(finite, FORMAT)
            most = tl.maximum(most, tl.max(finite))
            sum_sq += tl.sum(values * values)
            nan_count += tl.sum((bits >= FORMAT.nan).to(tl.int64))
            nonfinite_count += tl.sum((bits >= FORMAT.nonfinite).to(tl.int64))
    return most, nan_count, nonfinite_count - nan_count, sum_sq


@triton.jit
def _float64(bits, FORMAT: tl.constexpr):
    return bits.to(tl.float64 if FORMAT.is_wide else tl.float32, bitcast=True).to(tl.float64)


@triton.jit
def _merge_extremes(row, most, least_less_one, FORMAT: tl.constexpr):
    # Doubles that are not negative are in the order of their bits, and whole numbers have an atomic maximum.
    amax = _float64(most, FORMAT).to(tl.int64, bitcast=True)
    has_nonzero = least_less_one < FORMAT.nonfinite - 1
    amin = _float64(least_less_one + 1, FORMAT).to(tl.int64, bitcast=True)
    cells = row.to(tl.pointer_type(tl.int64))
    # Most programs find that another has said more: they look first, since atomics on one place queue up.
    tl.atomic_max(cells, amax, mask=amax > tl.load(cells, volatile=True), sem="relaxed")
    is_less = has_nonzero & (amin < tl.load(cells + 1, volatile=True))
    tl.atomic_min(cells + 1, amin, mask=is_less, sem="relaxed")


@triton.jit
def _add(row, COLUMN: tl.constexpr, value, repeats):
    cell = row.to(tl.pointer_type(tl.float64)) + COLUMN
    tl.atomic_add(cell, value.to(tl.float64) * repeats.to(tl.float64), mask=value > 0, sem="relaxed")
