"""The container of W&B's run files: the log format of LevelDB, after seven bytes that name it.

The file is cut into blocks of 32 KiB. A block holds chunks, `checksum u32 | length u16 | kind u8 | payload`,
little-endian, and fewer than seven bytes at its end are zeros. A record is one full chunk, or a first, middle ones and
a last one. The checksum is zlib's of kind and payload, and not masked, which is where it departs from LevelDB.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from rangewatch.commands.importing.protobuf import BadMessage

NAME = b":W&B\xe1\xbe\x00"
"""Part of the first block; the last byte is the version, and there is no other one yet."""
BLOCK_BYTES = 32 << 10
HEAD = struct.Struct("<IHB")
DAMAGED, FULL, FIRST, MIDDLE, LAST = range(5)
MOST_RECORD_BYTES = 16 << 20
"""What is larger is left out; a row of numbers is some KiB."""


class RunFile:
    """The records of an open file, and what of it could not be read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.lost_bytes = 0
        """Of records that are damaged, or too large."""
        self.is_cut = False
        """It ends within a record: its writer was killed, or is at work."""

    def records(self) -> Iterator[bytes]:
        """Each record that is whole. Raises `BadMessage` for another file."""
        record: bytearray | None = None  # None: between records, or in one that cannot be had whole
        for kind, payload in self._chunks():
            if kind in (DAMAGED, FULL, FIRST):
                self.lost_bytes += len(record or b"")  # its end is missing
                record = None if kind == DAMAGED else bytearray()
            if record is None or len(record) + len(payload) > MOST_RECORD_BYTES:
                self.lost_bytes += len(record or b"") + len(payload)
                record = None
                continue
            record += payload
            if kind in (FULL, LAST):
                yield bytes(record)
                record = None
        self.is_cut |= record is not None

    def _chunks(self) -> Iterator[tuple[int, bytes]]:
        """Kind and payload of each chunk; `DAMAGED` and all of it for one whose checksum is wrong."""
        at = len(NAME)
        while block := self._file.read(BLOCK_BYTES):
            if at and not block.startswith(NAME):
                raise BadMessage("it does not begin as one")
            yield from self._of_block(block, at)
            if len(block) < BLOCK_BYTES:  # the end: what a run that goes on has written since begins within a block
                return
            at = 0

    def _of_block(self, block: bytes, at: int) -> Iterator[tuple[int, bytes]]:
        """A damaged chunk does not end it: what its length leads to has a checksum too."""
        while len(block) - at >= HEAD.size:
            checksum, length, kind = HEAD.unpack_from(block, at)
            start, end = at + HEAD.size, at + HEAD.size + length
            if end > len(block):
                break
            is_sound = FULL <= kind <= LAST and zlib.crc32(block[start - 1 : end]) == checksum
            yield (kind, block[start:end]) if is_sound else (DAMAGED, block[at:end])
            at = end
        else:
            length = 0
        if len(block) < BLOCK_BYTES and at + HEAD.size + length <= BLOCK_BYTES:
            self.is_cut |= at < len(block)
        elif len(block) - at >= HEAD.size:
            yield DAMAGED, block[at:]
