"""The fields of a protobuf message, read without its schema. Trusts nothing: what ends early is refused."""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")


class BadMessage(Exception):
    """It is no protobuf message."""


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Number, wire type and value of each field; a fixed one as its bytes. Raises `BadMessage`."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _varint(data, at)
            yield key >> 3, kind, value
            continue
        if kind == BYTES:
            size, at = _varint(data, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise BadMessage(f"a field of wire type {kind}")
        if size > len(data) - at:
            raise BadMessage("it ends early")
        yield key >> 3, kind, data[at : at + size]
        at += size


def contents(data: bytes, wanted: int) -> Iterator[bytes]:
    """The messages or texts of a field, in their order. Raises `BadMessage`."""
    for number, kind, value in fields(data):
        if number == wanted and kind == BYTES and isinstance(value, bytes):
            yield value


def double(data: bytes) -> float:
    """A `double`, little-endian."""
    return float(_DOUBLE.unpack(data)[0])


def single(data: bytes) -> float:
    """A `float`, little-endian."""
    return float(_FLOAT.unpack(data)[0])


def signed(value: int) -> int:
    """An `int64`, which is written as what it is modulo 2**64."""
    return value - (1 << 64) if value >> 63 else value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    if at < len(data) and data[at] < 128:
        return data[at], at + 1  # as nearly all are
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise BadMessage("a number does not end")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value & (1 << 64) - 1, at
