"""One array as a typed, little-endian block of bytes: lossless, in the smallest dtype that holds it.

A training run's statistics are mostly constant (no NaN, no Inf, the same numel), so a constant column is a single value
and costs nothing to send, store or merge. The others have their bytes transposed (all first bytes, then all
second bytes, ...): neighbouring magnitudes share sign and exponent, and zstd finds that only when they lie together.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.wire.errors import WireError

Array = NDArray[Any]

DTYPES = {name: np.dtype(f"<{name}") for name in ("u1", "u2", "u4", "i8", "f4", "f8")}
_NARROW = tuple(DTYPES[name] for name in ("u1", "u2", "u4", "f4"))
ENCODINGS = ("const", "range", "shuffle")
MAX_RANGE = 1 << 20  # values of one range, which 16 bytes expand to: steps, tensors and times have fewer


class Column(msgspec.Struct, frozen=True, array_like=True):
    """How a block of `nbytes` bytes reads as `count` values of `dtype`."""

    dtype: str
    encoding: str
    count: int
    nbytes: int


def pack_into(values: Array, blocks: list[bytes]) -> Column:
    """Encode a numeric array of any shape, in C order, as one more block; every value comes back exactly equal."""
    flat = np.ascontiguousarray(values).reshape(-1)
    if flat.size and _is_constant(flat):
        dtype, encoding = "i8" if flat.dtype.kind in "iu" else "f8", "const"
        block = flat[:1].astype(DTYPES[dtype]).tobytes()
    elif flat.dtype.kind == "i" and flat.size and _is_range(flat):
        dtype, encoding = "i8", "range"
        block = np.array([flat[0], flat[1] - flat[0]], "<i8").tobytes()
    else:
        narrow = flat  # what is narrow comes from an earlier unpack
        if flat.dtype.kind in "iu" and flat.dtype not in _NARROW:
            narrow = flat.astype("<i8")
        elif flat.dtype not in _NARROW:
            with np.errstate(over="ignore", invalid="ignore"):
                for name in ("u1", "u2", "u4", "f4", "f8"):
                    narrow = flat.astype(DTYPES[name])
                    if name == "f8" or _same(narrow.astype(np.float64), flat):
                        break
        dtype, encoding = narrow.dtype.str[1:], "shuffle"
        block = _transposed(narrow, narrow.dtype.itemsize)
    blocks.append(block)
    return Column(dtype, encoding, flat.size, len(block))


def pack(values: Array) -> tuple[Column, bytes]:
    """The same for one array by itself."""
    blocks: list[bytes] = []
    return pack_into(values, blocks), blocks[0]


def unpack(column: Column, block: bytes | memoryview) -> Array:
    """Decode one block: a read-only 1-D array in the dtype it was sent in (constants broadcast, not copied).

    Raises `WireError` when the bytes do not fit the description.
    """
    dtype = DTYPES.get(column.dtype)
    if dtype is None or column.encoding not in ENCODINGS or column.count < 0:
        raise WireError("bad_header", f"unknown column format {column.dtype!r}/{column.encoding!r}")
    items = {"const": 1, "range": 2}.get(column.encoding, column.count)
    if len(block) != items * dtype.itemsize:
        raise WireError("bad_header", f"column of {column.count} values has {len(block)} bytes")
    if column.encoding == "range" and dtype.itemsize != 8:
        raise WireError("bad_header", f"a range is of 64-bit whole numbers, and not of {column.dtype!r}")
    if column.encoding == "const":
        return np.ndarray((column.count,), dtype, bytes(block), 0, (0,))  # a tenth of what broadcast_to takes
    if column.encoding == "range":
        return _unpack_range(np.frombuffer(block, "<i8"), column.count)
    if dtype.itemsize == 1:
        return np.frombuffer(block, dtype)
    return np.frombuffer(_transposed(np.frombuffer(block, np.uint8), column.count), dtype)


FEW_BYTES = 2_048


def _transposed(values: Array, width: int) -> bytes:
    """The bytes of a (rows, width) byte matrix by columns. Of many a loop over the short side: half of numpy's time;
    of few, such as a series of eight steps, numpy's, which is a tenth of the loop's.
    """
    if not values.size:
        return b""
    rows = values.view(np.uint8).reshape(-1, width)
    if rows.size <= FEW_BYTES:
        return rows.T.tobytes()
    result = np.empty((width, len(rows)), np.uint8)
    if len(rows) < width:
        for index, row in enumerate(rows):
            result[:, index] = row
    else:
        for index in range(width):
            result[index] = rows[:, index]
    return result.tobytes()


def _is_constant(flat: Array) -> bool:
    if flat[0] != flat[-1] and flat[0] == flat[0]:
        return False
    # NaN differs from itself, and +0.0 from -0.0 in bits only: compare bit patterns.
    if flat.dtype.itemsize == 8:
        flat = flat.view(np.uint64)
    return bool(flat[0] == flat[-1]) and bool((flat == flat[0]).all())


def _is_range(flat: Array) -> bool:
    stride = int(flat[1]) - int(flat[0]) if flat.size > 1 else 0
    is_taken = flat.size <= MAX_RANGE and abs(int(flat[0])) < 2**62 and 0 < stride < 2**31
    return is_taken and bool((np.diff(flat) == stride).all())


def _unpack_range(start_and_stride: Array, count: int) -> Array:
    start, stride = int(start_and_stride[0]), int(start_and_stride[1])
    if not (abs(start) < 2**62 and 0 < stride < 2**31 and count <= MAX_RANGE):
        raise WireError("bad_header", "range column out of bounds")
    return start + stride * np.arange(count, dtype=np.int64)


def _same(left: Array, right: Array) -> bool:
    # Quick look first: most columns are decided by their first values.
    if left.size > 64 and not _same(left[:32], right[:32]):
        return False
    return bool(np.array_equal(left.view(np.uint64), right.astype(np.float64).view(np.uint64)))
