"""Samples as bytes, and as rows of their table: one table of a batch, or several of one source and key joined.

    b"RWS1" | crc32 u32 of the rest | one zstd frame of: header length u32 | header (msgpack) | blocks

A table of a batch is mostly a few rows of many columns: they are one block, which costs a tenth of a block each. Joined
tables lie one behind the other as parts: those of the same details and columns are one. The checksum is checked
before anything else.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray
from sqlalchemy import insert

from rangewatch.wire import MAX_DECOMPRESSED_BYTES, Column, WireError, pack, unpack
from rangewatch.wire.records import Batch, Samples
from rangewatch_server.store import tables

Array = NDArray[Any]
Row = dict[str, Any]

MAGIC = b"RWS1"
PREFIX = struct.Struct("<4sI")
LENGTH = struct.Struct("<I")
ZSTD_LEVEL = 1
MAX_BYTES = MAX_DECOMPRESSED_BYTES + (1 << 20)  # unpacked: no more than a batch may hold
MAX_WINDOW_BYTES = 8 << 20
MAX_VALUES = 65_536 * 129  # what columns may stand for: constants expand without bytes
MAX_PARTS = 64
SPAN_NS = 3_600 * 10**9  # no row of the table spans more: a reader looks no further than that past the time asked for
FEW_ROWS = 32  # fewer are stored as one block: packing a block costs 20 us of the one writer
SMALL_ROWS = 2_048  # what has more is not joined with its neighbours
STEP = "step"

INSERT_SAMPLES = insert(tables.samples)


class SamplesError(ValueError):
    """Stored samples that cannot be read."""


class Part(msgspec.Struct, frozen=True):
    """Rows of one meaning. `times_ns`: (n,) int64 ascending; each of `columns`: (n,); `about`: facts as JSON."""

    times_ns: Array
    columns: dict[str, Array]
    about: bytes


class _Header(msgspec.Struct, frozen=True, array_like=True):
    times_ns: Column
    names: tuple[str, ...]
    columns: tuple[Column, ...]
    """One a name, or one for all: a row of values a name."""
    about: bytes


_of_thread = threading.local()
_DECODER = msgspec.msgpack.Decoder(tuple[_Header, ...])
_DAMAGE = (struct.error, msgspec.MsgspecError, zstandard.ZstdError, WireError, ValueError)


def encode(parts: Sequence[Part]) -> bytes:
    """The parts as one payload."""
    blocks: list[bytes] = []
    headers: list[_Header] = []
    for part in parts:
        columns = list(part.columns.values())
        if columns and len(part.times_ns) < FEW_ROWS:
            columns = [np.stack(columns)]
        packed = [pack(values) for values in (part.times_ns, *columns)]
        blocks += [data for _, data in packed]
        times, *others = (column for column, _ in packed)
        headers.append(_Header(times, tuple(part.columns), tuple(others), part.about))
    header = msgspec.msgpack.encode(headers)
    frame = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(b"".join((LENGTH.pack(len(header)), header, *blocks)))
    return PREFIX.pack(MAGIC, zlib.crc32(frame)) + frame


def decode(payload: bytes) -> list[Part]:
    """The parts, read-only, columns in the dtype they were sent in. Raises `SamplesError`.

    Takes no more memory than one batch may, whatever the payload claims.
    """
    data = memoryview(payload)
    parts: list[Part] = []
    try:
        magic, checksum = PREFIX.unpack_from(data)
        frame = data[PREFIX.size :]
        if magic != MAGIC or zlib.crc32(frame) != checksum:
            raise ValueError("wrong checksum")
        if not 0 <= zstandard.get_frame_parameters(frame).content_size <= MAX_BYTES:
            raise ValueError("unpacked they are too large")
        raw = memoryview(_decompressor().decompress(frame))
        (length,) = LENGTH.unpack_from(raw)
        headers = _DECODER.decode(raw[LENGTH.size : LENGTH.size + length])
        _check(headers)
        position = LENGTH.size + length
        for header in headers:
            blocks: list[Array] = []
            for column in (header.times_ns, *header.columns):
                blocks.append(unpack(column, raw[position : position + column.nbytes]))
                position += column.nbytes
            times, names = blocks.pop(0), header.names
            columns = blocks if len(blocks) == len(names) else blocks[0].reshape(len(names), -1)
            parts.append(Part(times, dict(zip(names, columns, strict=True)), header.about))
        if position != len(raw):
            raise ValueError("wrong length")
    except _DAMAGE as error:
        raise SamplesError(f"stored samples are damaged: {error}") from None
    return parts


def _decompressor() -> zstandard.ZstdDecompressor:
    """This thread's: to make one costs four times what some rows do, and no two threads may share it."""
    if not hasattr(_of_thread, "decompressor"):
        _of_thread.decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    decompressor: zstandard.ZstdDecompressor = _of_thread.decompressor
    return decompressor


def _check(headers: Sequence[_Header]) -> None:
    if not 0 < len(headers) <= MAX_PARTS:
        raise ValueError("wrong number of parts")
    values = 0
    for each in headers:
        rows, names = each.times_ns.count, len(each.names)
        counts = [column.count for column in each.columns]
        if counts not in ([rows] * names, [rows * names]) or len(set(each.names)) != names:
            raise ValueError("columns of different lengths")
        if rows < 1 or min(column.nbytes for column in (each.times_ns, *each.columns)) < 0:
            raise ValueError("no rows")
        values += (1 + names) * rows
    if values > MAX_VALUES:
        raise ValueError("columns stand for too many values")


def rows_of(run_id: int, stream_id: int, batch: Batch) -> list[Row]:
    """Rows of the table `samples` for what a batch holds; the caller has checked it."""
    rows: list[Row] = []
    for each in batch.samples:
        about = msgspec.json.encode(each.about)
        for low, high in spans(each.times_ns):
            columns = {name: values[low:high] for name, values in each.columns.items()}
            part = Part(each.times_ns[low:high], columns, about)
            place = {"run_id": run_id, "stream_id": stream_id, "sequence": batch.sequence, "number": len(rows)}
            rows.append(place | row_values(each.source, each.key, [part]))
    return rows


def row_values(source: str, key: str, parts: Sequence[Part], *, joined: bool = False) -> Row:
    """A row of the table but for its place."""
    description = described(parts)
    is_done = joined or description["row_count"] > SMALL_ROWS
    return {"source": source, "sample_key": key, **description, "joined": int(is_done), "payload": encode(parts)}


def described(parts: Sequence[Part]) -> Row:
    """What the columns of the table say of a payload."""
    steps = [part.columns[STEP] for part in parts if STEP in part.columns]
    return {
        "first_ns": min(int(part.times_ns[0]) for part in parts),
        "last_ns": max(int(part.times_ns[-1]) for part in parts),
        "first_step": min((int(each.min()) for each in steps), default=None),
        "last_step": max((int(each.max()) for each in steps), default=None),
        "row_count": sum(len(part.times_ns) for part in parts),
    }


def spans(times_ns: Array) -> Iterator[tuple[int, int]]:
    """Places [low, high) of rows that lie within `SPAN_NS`: a process may be stopped, or its clock set, between two."""
    low = 0
    while low < len(times_ns):
        end_ns = min(int(times_ns[low]) + SPAN_NS, 2**63 - 1)
        high = int(np.searchsorted(times_ns, end_ns, side="right"))
        yield low, high
        low = high


def join(parts: Sequence[Part]) -> list[Part]:
    """The same rows in the same order, in as few parts as that takes."""
    groups: list[list[Part]] = []
    for part in parts:
        if groups and _goes_on(groups[-1][-1], part):
            groups[-1].append(part)
        else:
            groups.append([part])
    return [_concatenated(group) for group in groups]


def _goes_on(before: Part, after: Part) -> bool:
    is_alike = before.about == after.about and list(before.columns) == list(after.columns)
    return is_alike and bool(before.times_ns[-1] <= after.times_ns[0])


def _concatenated(group: Sequence[Part]) -> Part:
    if len(group) == 1:
        return group[0]
    columns = {
        name: np.concatenate([part.columns[name] for part in group], dtype=np.float64) for name in group[0].columns
    }
    return Part(np.concatenate([part.times_ns for part in group]), columns, group[0].about)


def samples_of(source: str, key: str, part: Part) -> Samples:
    """A part as it was sent. Raises `ValueError` when its facts are no JSON object."""
    return Samples(source, key, part.times_ns, part.columns, msgspec.json.decode(part.about, type=dict[str, Any]))
