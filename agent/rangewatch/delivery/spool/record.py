"""One batch as a record of a segment file, found again whatever is damaged around it.

    magic 8s | header CRC32 u32 | body CRC32 u32 | body bytes u32 | whole steps u32 | batches u32 | tensor count u32 |
    sequence u64 | catalogue digest 32s | state u8 | 3 bytes | whole steps i64 each | body          (little-endian)

There are no whole steps any more: older agents kept them out of merging, and they are passed over. The header's CRC
covers what lies between it and the state, the body's what follows the header. The state alone is written in place, one
byte, when the batch need not be sent any more. Its two values differ in all bits, so that a damaged one is neither, and
the batch is sent again rather than lost: the server knows its sequence.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

MAGIC = b"\xa5RWSP1\r\n"
HEADER = struct.Struct("<8sIIIIIIQ32sB3x")
_CHECKED = slice(12, HEADER.size - 4)
STATE_OFFSET = HEADER.size - 4
HELD, FREED = 0xA5, 0x5A


class Encoded(NamedTuple):
    """A batch as bytes, with the size and the digest of the catalogue it belongs to.

    `batches`: how many it was made of: 1, but in spools
    of older agents, which halved the steps of what waited long.
    """

    body: bytes
    tensor_count: int
    catalogue: str
    sequence: int = 0
    batches: int = 1


class StoredBatches(NamedTuple):
    """A sound record at `offset` of a segment. `is_held`: it has not been acknowledged."""

    offset: int
    batch: Encoded
    is_held: bool


def pack(batch: Encoded) -> bytes:
    """The record of a batch."""
    header = bytearray(
        HEADER.pack(
            MAGIC, 0, zlib.crc32(batch.body), len(batch.body), 0, batch.batches, batch.tensor_count,
            batch.sequence, batch.catalogue.encode("ascii"), HELD,
        )
    )  # fmt: skip
    struct.pack_into("<I", header, 8, zlib.crc32(header[_CHECKED]))
    return bytes(header) + batch.body


class Scanned(NamedTuple):
    """What a segment holds: its sound records in order, and how many more it held that were to be sent and are damaged.

    Some of those may have been sent before: where a header is gone, so is the note of it.
    """

    records: list[StoredBatches]
    damaged: int


def scan(data: bytes) -> Scanned:
    """The records of a segment. What is torn or damaged is passed over, up to the next magic.

    A segment is written over from its start once all of it has been sent, so after its newest record there may be the
    rest of older ones: their sequences are lower, and they begin anywhere.
    """
    records: list[StoredBatches] = []
    damaged = end = 0
    is_old = False
    while True:
        place, read = _next_sound(data, end)
        before = records[-1].batch.sequence if records else -1
        if not is_old:
            is_old = read is not None and read[0].batch.sequence < before
            if read is None or is_old:
                damaged += _unsent_at(data, end, before)
            elif place > end and read[0].is_held:  # records are sent in order
                damaged += max(1, read[0].batch.sequence - before - 1 if records else data.count(MAGIC, end, place))
        if read is None:
            return Scanned(records, damaged)
        records.append(read[0])
        end = read[1]


def _next_sound(data: bytes, start: int) -> tuple[int, tuple[StoredBatches, int] | None]:
    position = data.find(MAGIC, start)
    while position >= 0:
        if (read := _read(data, position)) is not None:
            return position, read
        position = data.find(MAGIC, position + 1)
    return len(data), None


def _unsent_at(data: bytes, offset: int, before: int) -> int:
    """1 where a record after that of the sequence `before` begins here that is damaged and was to be sent, 0 where not.

    One that ends after the segment does was being written when its process ended.
    """
    header = data[offset : offset + HEADER.size]
    if len(header) < HEADER.size:
        return 0
    _, _, _, body_bytes, wholes, _, _, sequence, _, state = HEADER.unpack(header)
    if not _is_sound(header):
        return int(header.startswith(MAGIC) or offset == 0)
    is_torn = offset + HEADER.size + 8 * wholes + body_bytes > len(data)
    return int(sequence > before and state != FREED and not is_torn)


def _is_sound(header: bytes) -> bool:
    return zlib.crc32(header[_CHECKED]) == int.from_bytes(header[8:12], "little")


def _read(data: bytes, offset: int) -> tuple[StoredBatches, int] | None:
    header = data[offset : offset + HEADER.size]
    if len(header) < HEADER.size or not _is_sound(header):
        return None
    _, _, crc, body_bytes, wholes, batches, tensor_count, sequence, catalogue, state = HEADER.unpack(header)
    middle = offset + HEADER.size + 8 * wholes
    end = middle + body_bytes
    if end > len(data) or zlib.crc32(memoryview(data)[offset + HEADER.size : end]) != crc:
        return None
    digest = catalogue.rstrip(b"\0").decode("ascii", "replace")
    batch = Encoded(data[middle:end], tensor_count, digest, sequence, batches)
    return StoredBatches(offset, batch, state != FREED), end
