"""Whole messages: zstd over a fixed prefix, a msgpack header and the column blocks in the order the header names them.

    b"RWCH" | version u16 | header length u32 | header | blocks      (little-endian; then one zstd frame with its size)

Decoding trusts nothing: both sizes are bounded before memory is taken, every block's length is checked against its
description, and no object is ever built from a name in the message.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Annotated, Any

import msgspec
import zstandard

from rangewatch.wire.columns import Column, pack_into, unpack
from rangewatch.wire.details import Details
from rangewatch.wire.errors import WireError
from rangewatch.wire.records import (
    MAX_DIMS,
    MAX_STATISTICS,
    MAX_TENSORS,
    Batch,
    Catalogue,
    Event,
    FloatArray,
    RangeRows,
    RankInfo,
    Samples,
    SeriesRows,
    Statistic,
    StreamHeader,
    TensorEntry,
)

# Catalogues in bounded memory: what their shapes hold is checked before any number of them becomes an object. A
# dimension of 3 bytes is 40 in memory: measured on a running server, an opening of 43 MiB with 11 million of them
# (3 MiB packed) took 525 MiB, and eight at once 5.4 GiB. With these bounds the worst that could be made takes 280 MiB
# for a moment, and 230 MiB until its run is forgotten.
# 10,000 layers with 3 kinds are 4 MiB; 200,000 tensors, which is most, with names of 80 characters 30 MiB. Text with
# one emoji has 4 bytes a character in memory, so this is 128 MiB at most.
MAX_OPENING_BYTES = 32 << 20
MAX_SHAPE_BYTES = 8 << 20  # of all shapes together, 107 MiB of objects; 200,000 tensors of 8 large dimensions

_SHAPE = msgspec.msgpack.Decoder(Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_DIMS)])


class _Tensor(msgspec.Struct, frozen=True):
    """A `TensorEntry` whose shape is bytes yet."""

    fqn: str
    kind: str
    index: int
    dtype: str
    shape: msgspec.Raw
    call_index: int
    module: str = ""


class _Catalogue(msgspec.Struct, frozen=True):
    statistics: Annotated[tuple[Statistic, ...], msgspec.Meta(max_length=MAX_STATISTICS)]
    tensors: Annotated[tuple[_Tensor, ...], msgspec.Meta(max_length=MAX_TENSORS)]


class PackedStreamHeader(msgspec.Struct, frozen=True):
    """An `StreamHeader` as it is decoded first."""

    info: RankInfo
    catalogue: _Catalogue


def unpack_opening(packed: PackedStreamHeader, header_bytes: int) -> StreamHeader:
    """The opening. Raises `WireError`: `too_large`, or `bad_header` for a shape that is none."""
    if header_bytes > MAX_OPENING_BYTES:
        raise WireError("too_large", f"an opening has {header_bytes} bytes; at most {MAX_OPENING_BYTES} are taken")
    tensors = packed.catalogue.tensors
    if sum(len(memoryview(each.shape)) for each in tensors) > MAX_SHAPE_BYTES:
        raise WireError("too_large", f"shapes of tensors have more than {MAX_SHAPE_BYTES} bytes together")
    entries = tuple(
        TensorEntry(each.fqn, each.kind, each.index, each.dtype, _shape(each.shape), each.call_index, each.module)
        for each in tensors
    )
    return StreamHeader(packed.info, Catalogue(packed.catalogue.statistics, entries))


def _shape(packed: msgspec.Raw) -> tuple[int, ...]:
    try:
        return _SHAPE.decode(packed)
    except msgspec.DecodeError as error:
        code = "too_large" if "of length <=" in str(error) else "bad_header"
        raise WireError(code, f"a tensor's shape does not decode: {str(error)[:200]}") from None


VERSION = 2  # 2: samples; a message without any is written as version 1, which older servers read
MAGIC = b"RWCH"
PREFIX = struct.Struct("<4sHI")

PROCESS_HEADER, PROCESS_ENDED = "Rangewatch-Process", "ended"
"""HTTP header of what is sent of a process that is gone."""

MAX_COMPRESSED_BYTES = 16 << 20  # the agent ships about once a second: 16 MiB is 600 tensors x 2,000 steps with room
MAX_DECOMPRESSED_BYTES = 64 << 20  # a body may unpack to this; a bomb stops here
MAX_HEADER_BYTES = 48 << 20  # of a batch nearly all is details of events; an opening may have MAX_OPENING_BYTES
MAX_STEPS = (
    4_096  # of one batch: 64 buffers of the agent; a range of steps expands without bytes, so it is bounded here
)
MAX_ROWS = 200_000  # tensors of one batch
MAX_SERIES = 256  # of one batch
MAX_SAMPLES = 256  # tables of samples in one batch: a host's GPUs, twice over
MAX_SAMPLE_ROWS = 65_536  # of one table: 20 s of a rank's collectives is 20,000
MAX_SAMPLE_COLUMNS = 128
MAX_COLUMNS = 4_096  # of ranges: a catalogue with histograms has 288 statistics
MAX_EVENTS = 1_000
MAX_WINDOW_BYTES = 8 << 20  # what zstd may hold while decompressing; level 1-3 use 2 MiB or less
ZSTD_LEVEL = 1  # level 3 packs 4% smaller at 2x the time on captured statistics


_NOTHING = msgspec.Raw(msgspec.msgpack.encode({}))


def _at_most(length: int) -> msgspec.Meta:
    """Looked at before memory is taken: a column is 9 bytes of header and 250 of memory."""
    return msgspec.Meta(max_length=length)


class RangesHeader(msgspec.Struct, frozen=True):
    """How the blocks of a batch's ranges read, in their order."""

    steps: Column
    tensors: Column
    columns: Annotated[dict[str, Column], _at_most(MAX_COLUMNS)]


class SeriesHeader(msgspec.Struct, frozen=True):
    """The same of one series."""

    name: str
    steps: Column
    values: Column


class _SamplesHeader(msgspec.Struct, frozen=True):
    source: str
    key: str
    times_ns: Column
    columns: Annotated[dict[str, Column], _at_most(MAX_SAMPLE_COLUMNS)]
    about: msgspec.Raw = _NOTHING


class _EventHeader(msgspec.Struct, frozen=True):
    kind: str
    time_ns: int
    step: int
    message: str = ""
    data: msgspec.Raw = _NOTHING


class _BatchHeader(msgspec.Struct, frozen=True, tag_field="message", tag="batch"):
    run: str
    rank: int
    incarnation: str
    sequence: int
    catalogue: str
    ranges: RangesHeader | None
    series: Annotated[tuple[SeriesHeader, ...], _at_most(MAX_SERIES)]
    events: Annotated[tuple[_EventHeader, ...], _at_most(MAX_EVENTS)]
    settled: int = 0
    samples: Annotated[tuple[_SamplesHeader, ...], _at_most(MAX_SAMPLES)] = ()


class BatchSections(msgspec.Struct, frozen=True, tag_field="message", tag="batch"):
    """The header of a batch where what says how its rows read is bytes yet: equal bytes are an equal layout."""

    run: str
    rank: int
    incarnation: str
    sequence: int
    catalogue: str
    ranges: msgspec.Raw
    series: msgspec.Raw
    events: Annotated[tuple[_EventHeader, ...], _at_most(MAX_EVENTS)]
    settled: int = 0
    samples: Annotated[tuple[_SamplesHeader, ...], _at_most(MAX_SAMPLES)] = ()


class _StreamHeader(msgspec.Struct, frozen=True, tag_field="message", tag="opening"):
    opening: StreamHeader


class _PackedStreamHeader(msgspec.Struct, frozen=True, tag_field="message", tag="opening"):
    opening: PackedStreamHeader


_HEADER = msgspec.msgpack.Decoder(_BatchHeader | _PackedStreamHeader)


def catalogue_digest(catalogue: Catalogue) -> str:
    """Name of a catalogue: 128-bit BLAKE2b of its msgpack form, in hexadecimal."""
    return hashlib.blake2b(msgspec.msgpack.encode(catalogue), digest_size=16).hexdigest()


def encode(message: StreamHeader | Batch) -> bytes:
    """One message as the body of a `POST /api/v1/ingest`."""
    blocks: list[bytes] = []
    header: _BatchHeader | _StreamHeader
    if isinstance(message, StreamHeader):
        header, version = _StreamHeader(message), 1
    else:
        ranges, version = None, VERSION if message.samples else 1
        if message.ranges is not None:
            ranges = RangesHeader(
                pack_into(message.ranges.steps, blocks),
                pack_into(message.ranges.tensors, blocks),
                {name: pack_into(values, blocks) for name, values in message.ranges.columns.items()},
            )
        series = tuple(
            SeriesHeader(rows.name, pack_into(rows.steps, blocks), pack_into(rows.values, blocks))
            for rows in message.series
        )
        samples = tuple(
            _SamplesHeader(
                each.source, each.key, pack_into(each.times_ns, blocks),
                {name: pack_into(values, blocks) for name, values in each.columns.items()}, _packed(each.about),
            )
            for each in message.samples
        )  # fmt: skip
        events = tuple(
            _EventHeader(each.kind, each.time_ns, each.step, each.message, _packed(each.data))
            for each in message.events
        )
        header = _BatchHeader(
            message.run, message.rank, message.incarnation, message.sequence, message.catalogue, ranges, series, events,
            message.settled, samples,
        )  # fmt: skip
    encoded = msgspec.msgpack.encode(header)
    raw = b"".join((PREFIX.pack(MAGIC, version, len(encoded)), encoded, *blocks))
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True).compress(raw)


def decode(body: bytes, *, rows_only: bool = False) -> StreamHeader | Batch:
    """The message in `body`; with `rows_only` a batch without its samples and events.

    Raises `WireError`, whose `code` is one of: `not_zstd`, `truncated`, `too_large`, `unsupported_version`,
    `bad_header`, `shape_mismatch`.
    """
    encoded, data = opened(body)
    header = _decode_header(encoded)
    blocks = _Blocks(data)
    if isinstance(header, _BatchHeader):
        message: StreamHeader | Batch = _rows(header, blocks) if rows_only else _batch(header, blocks)
        if rows_only:
            return message
    else:
        message = unpack_opening(header.opening, len(encoded))
    blocks.finish()
    return message


def opened(body: bytes) -> tuple[memoryview, memoryview]:
    """A message's header and blocks, as bytes. Raises `WireError`, as `decode` does."""
    raw = memoryview(_decompress(body))
    if len(raw) < PREFIX.size:
        raise WireError("truncated", "message is shorter than its prefix")
    magic, version, header_bytes = PREFIX.unpack_from(raw)
    if magic != MAGIC:
        raise WireError("bad_header", "not a Rangewatch message")
    if not 1 <= version <= VERSION:
        raise WireError("unsupported_version", f"wire version {version}; this server reads versions 1 to {VERSION}")
    if header_bytes > min(MAX_HEADER_BYTES, len(raw) - PREFIX.size):
        raise WireError("truncated", "message ends inside its header")
    return raw[PREFIX.size : PREFIX.size + header_bytes], raw[PREFIX.size + header_bytes :]


def _decompress(body: bytes) -> bytes:
    if len(body) > MAX_COMPRESSED_BYTES:
        raise WireError("too_large", f"body has {len(body)} bytes; at most {MAX_COMPRESSED_BYTES} are taken")
    try:
        size = zstandard.get_frame_parameters(body).content_size
    except zstandard.ZstdError:
        raise WireError("not_zstd", "body is not a zstd frame") from None
    if size in (zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR):
        raise WireError("not_zstd", "zstd frame does not state its content size")
    if size > MAX_DECOMPRESSED_BYTES:
        raise WireError("too_large", f"body unpacks to {size} bytes; at most {MAX_DECOMPRESSED_BYTES} are taken")
    try:
        decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
        return bytes(decompressor.decompress(body, allow_extra_data=False))
    except zstandard.ZstdError:
        raise WireError("truncated", "zstd frame is cut short, damaged or followed by other bytes") from None


def _decode_header(encoded: memoryview) -> _BatchHeader | _PackedStreamHeader:
    try:
        return _HEADER.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # msgspec has no name for it: "Expected `array` of length <= 256 - at `$.series`".
        code = "too_large" if "of length <=" in str(error) else "bad_header"
        raise WireError(code, f"header does not decode: {str(error)[:200]}") from None


def _packed(details: dict[str, Any]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(details))


class _Blocks:
    """Reads the blocks in order; what is left over or missing is an error."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self._last: tuple[Column, memoryview, Any] | None = None
        self.values_left = MAX_DECOMPRESSED_BYTES // 2  # constants expand without bytes: bound what they stand for

    def steps(self, column: Column, most: int) -> Any:
        """Ascending steps; those of a dozen series are mostly the same, and are made once."""
        before = self.data
        if self._last is not None and column == self._last[0] and before[: column.nbytes] == self._last[1]:
            self.values_left -= column.count
            if self.values_left < 0:
                raise WireError("too_large", "columns stand for too many values")
            self.data = before[column.nbytes :]
            return self._last[2]
        values = _ascending(self.take(column, most))
        self._last = (column, before[: column.nbytes], values)
        return values

    def take(self, column: Column, most: int = MAX_DECOMPRESSED_BYTES) -> Any:
        if not 0 <= column.nbytes <= len(self.data):
            raise WireError("truncated", "message ends inside a column")
        if not 0 <= column.count <= min(most, self.values_left):
            raise WireError("too_large", "columns stand for too many values")
        self.values_left -= column.count
        block, self.data = self.data[: column.nbytes], self.data[column.nbytes :]
        return unpack(column, block)

    def finish(self) -> None:
        if len(self.data):
            raise WireError("bad_header", f"{len(self.data)} bytes after the last column")


def _rows(header: _BatchHeader, blocks: _Blocks) -> Batch:
    """Ranges and series."""
    ranges = None if header.ranges is None else _range_rows(header.ranges, blocks)
    series = tuple(_series_rows(each, blocks) for each in header.series)
    about = header.run, header.rank, header.incarnation, header.sequence, header.catalogue
    return Batch(*about, ranges, series, (), header.settled)


def _batch(header: _BatchHeader, blocks: _Blocks) -> Batch:
    details, rows = Details(), _rows(header, blocks)
    samples = tuple(_samples(each, blocks, details) for each in header.samples)
    events = tuple(
        Event(each.kind, each.time_ns, each.step, each.message, details.decode(each.data)) for each in header.events
    )
    return msgspec.structs.replace(rows, events=events, samples=samples)


def _range_rows(header: RangesHeader, blocks: _Blocks) -> RangeRows:
    steps = _ascending(blocks.take(header.steps, MAX_STEPS))
    tensors = _ascending(blocks.take(header.tensors, MAX_ROWS))
    shape = (len(tensors), len(steps))
    columns: dict[str, FloatArray] = {}
    for name, column in header.columns.items():
        if column.count != shape[0] * shape[1]:
            raise WireError("shape_mismatch", f"column {name[:60]!r} has {column.count} values for {shape} cells")
        columns[name] = blocks.take(column).reshape(shape)
    return RangeRows(steps, tensors, columns)


def _series_rows(header: SeriesHeader, blocks: _Blocks) -> SeriesRows:
    steps, values = blocks.steps(header.steps, MAX_STEPS), blocks.take(header.values, MAX_STEPS)
    if len(steps) != len(values):
        raise WireError("shape_mismatch", f"series {header.name[:60]!r}: {len(steps)} steps, {len(values)} values")
    return SeriesRows(header.name, steps, values)


def _samples(header: _SamplesHeader, blocks: _Blocks, details: Details) -> Samples:
    times = blocks.take(header.times_ns, MAX_SAMPLE_ROWS)
    if times.dtype.kind != "i" or (len(times) and times[0] < 0) or not bool((times[1:] >= times[:-1]).all()):
        raise WireError("bad_header", "times of samples must be ascending whole numbers from 0")
    columns = {name: blocks.take(column, MAX_SAMPLE_ROWS) for name, column in header.columns.items()}
    for name, values in columns.items():
        if len(values) != len(times):
            raise WireError("shape_mismatch", f"column {name[:60]!r} has {len(values)} values for {len(times)} times")
    return Samples(header.source, header.key, times, columns, details.decode(header.about))


def _ascending(values: Any) -> Any:
    # Compared, not subtracted: from 2^63 - 1 to -2^63 is a difference of 1 in 64 bits.
    if values.dtype.kind != "i" or (len(values) and values[0] < 0) or not bool((values[1:] > values[:-1]).all()):
        raise WireError("bad_header", "steps and tensors must be ascending whole numbers from 0")
    return values
