"""A tile as bytes: 64 columns of one part of one stream at one level, each statistic a block of its own.

    b"RWT1" | crc32 u32 of the rest | header length u32 | header (msgpack) | blocks

Each block is compressed alone, so that a heatmap reads `amax` without unpacking the rest, and a constant
block is its one value. The checksum is looked at before anything else: a damaged tile is reported, never shown.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from rangewatch.wire import Column, WireError, pack, unpack
from rangewatch.wire.columns import DTYPES

Array = NDArray[Any]

WIDTH = 64  # columns: 8 tiles of a level make one of the next
MAGIC = b"RWT1"
PREFIX = struct.Struct("<4sII")
ZSTD_LEVEL = 1
SMALL_BYTES = 64  # a zstd frame around less than this is larger than what it holds


class TileError(ValueError):
    """A stored tile that cannot be read."""


class _Header(msgspec.Struct, frozen=True, array_like=True):
    rows: tuple[Column, int]
    columns: dict[str, tuple[Column, int]]


_DECODER = msgspec.msgpack.Decoder(_Header)
_thread = threading.local()


def encode(rows: Array, columns: Mapping[str, Array]) -> bytes:
    """`rows`: (t,) int64 ascending; each of `columns`: (t, WIDTH)."""
    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=False)
    blocks: list[bytes] = []
    places: list[tuple[Column, int]] = []
    for values in (rows, *columns.values()):
        column, data = pack(values)
        blocks.append(compressor.compress(data) if len(data) > SMALL_BYTES else data)
        places.append((column, len(blocks[-1])))
    header = msgspec.msgpack.encode(_Header(places[0], dict(zip(columns, places[1:], strict=True))))
    rest = b"".join((struct.pack("<I", len(header)), header, *blocks))
    return MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest


def decode(
    payload: bytes, names: Iterable[str] | None = None, rows: Array | None = None
) -> tuple[Array, dict[str, Array]]:
    """Rows, (t,) int64, and the named columns, (t, WIDTH): all by default; what the tile lacks is left out.

    `rows`: (n,) int64 ascending, the only rows to make arrays of. Raises `TileError`.
    """
    data, wanted = memoryview(payload), None if names is None else set(names)
    try:
        magic, checksum, header_bytes = PREFIX.unpack_from(data)
        if magic != MAGIC or zlib.crc32(data[8:]) != checksum:
            raise TileError("checksum does not match")
        header = _DECODER.decode(data[PREFIX.size : PREFIX.size + header_bytes])
        position = PREFIX.size + header_bytes
        column, nbytes = header.rows
        stored_rows = unpack(column, _unpacked(column, data[position : position + nbytes]))
        position += nbytes
        at = None if rows is None else _places(stored_rows, rows)
        columns: dict[str, Array] = {}
        for name, (column, nbytes) in header.columns.items():
            stored = data[position : position + nbytes]
            position += nbytes
            if wanted is not None and name not in wanted:
                continue
            if column.encoding == "const":
                columns[name] = _constant(column, stored, len(stored_rows) if at is None else len(at))
            elif at is None or column.encoding != "shuffle":
                values = unpack(column, _unpacked(column, stored)).reshape(len(stored_rows), WIDTH)
                columns[name] = values if at is None else values[at]
            else:  # rows are taken while the bytes are transposed: to put all of them back costs as much as unpacking
                dtype = _dtype(column)
                planes = np.frombuffer(_unpacked(column, stored), np.uint8)
                of_rows = planes.reshape(dtype.itemsize, len(stored_rows), WIDTH)[:, at]
                columns[name] = of_rows.transpose(1, 2, 0).copy().view(dtype)[..., 0]
        return stored_rows if at is None else stored_rows[at], columns
    except (struct.error, msgspec.MsgspecError, zstandard.ZstdError, WireError, ValueError) as error:
        raise TileError(f"stored tile is damaged: {error}") from None


def _places(rows: Array, wanted: Array) -> Array:
    at = np.searchsorted(rows, wanted)
    inside = at < len(rows)
    at, wanted = at[inside], wanted[inside]
    return at[rows[at] == wanted]


def _unpacked(column: Column, stored: memoryview) -> bytes | memoryview:
    if column.nbytes <= SMALL_BYTES:
        return stored
    if not hasattr(_thread, "decompressor"):  # not for two threads at once; a new one for each block costs half of it
        _thread.decompressor = zstandard.ZstdDecompressor()
    unpacked: bytes = _thread.decompressor.decompress(stored, max_output_size=column.nbytes)
    return unpacked


def _constant(column: Column, stored: memoryview, rows: int) -> Array:
    """A view of one value, which every merge knows. Most columns are constants, and numpy's broadcast_to is slow."""
    dtype = _dtype(column)
    if len(stored) != dtype.itemsize:
        raise TileError(f"constant column of {len(stored)} bytes")
    return np.ndarray((rows, WIDTH), dtype, bytes(stored), strides=(0, 0))


def _dtype(column: Column) -> np.dtype[Any]:
    if column.dtype not in DTYPES:
        raise TileError(f"unknown dtype {column.dtype!r}")
    return DTYPES[column.dtype]
