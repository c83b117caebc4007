"""A tile as bytes: 64 columns of one part of one stream at one level, each statistic a block of its own.

    b"RWT1" | crc32 u32 of the rest | header length u32 | header (msgpack) | blocks

Each block is compressed alone, so that a heatmap reads `amax` without unpacking the rest, and a constant
block is its one value. The checksum is looked at before anything else: a damaged tile is reported, never shown.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from rangewatch.wire import Column, WireError, pack, unpack

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


def encode(rows: Array, columns: Mapping[str, Array]) -> bytes:
    """`rows`: (t,) int64 ascending; each of `columns`: (t, WIDTH)."""
    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=False)
    blocks: list[bytes] = []

    def put(values: Array) -> tuple[Column, int]:
        column, data = pack(values)
        stored = compressor.compress(data) if len(data) > SMALL_BYTES else data
        blocks.append(stored)
        return column, len(stored)

    header = msgspec.msgpack.encode(_Header(put(rows), {name: put(values) for name, values in columns.items()}))
    rest = b"".join((struct.pack("<I", len(header)), header, *blocks))
    return MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest


def decode(payload: bytes, names: Iterable[str] | None = None) -> tuple[Array, dict[str, Array]]:
    """Rows and the named columns (all of them by default; names the tile lacks are left out). Raises `TileError`."""
    try:
        return _decode(memoryview(payload), None if names is None else set(names))
    except (struct.error, msgspec.MsgspecError, zstandard.ZstdError, WireError, ValueError) as error:
        raise TileError(f"stored tile is damaged: {error}") from None


def _decode(data: memoryview, names: set[str] | None) -> tuple[Array, dict[str, Array]]:
    magic, checksum, header_bytes = PREFIX.unpack_from(data)
    if magic != MAGIC or zlib.crc32(data[8:]) != checksum:
        raise TileError("checksum does not match")
    header = _DECODER.decode(data[PREFIX.size : PREFIX.size + header_bytes])
    position = PREFIX.size + header_bytes
    rows = _block(header.rows[0], data[position : position + header.rows[1]])
    position += header.rows[1]
    columns: dict[str, Array] = {}
    for name, (column, nbytes) in header.columns.items():
        if names is None or name in names:
            columns[name] = _shaped(_block(column, data[position : position + nbytes]), len(rows))
        position += nbytes
    return rows, columns


def _block(column: Column, stored: memoryview) -> Array:
    if column.nbytes > SMALL_BYTES:
        return unpack(column, zstandard.ZstdDecompressor().decompress(stored, max_output_size=column.nbytes))
    return unpack(column, stored)


def _shaped(values: Array, rows: int) -> Array:
    if values.size and values.strides == (0,):  # a constant stays a broadcast view, which every merge knows
        return np.broadcast_to(values[:1].reshape(1, 1), (rows, WIDTH))
    return values.reshape(rows, WIDTH)
