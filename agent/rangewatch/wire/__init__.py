"""The wire format: `StreamHeader` and `Batch` records to bytes and back. No torch, no I/O; see docs/wire.md."""

from rangewatch.wire.columns import Column, pack, unpack
from rangewatch.wire.errors import WireError
from rangewatch.wire.messages import (
    MAX_COMPRESSED_BYTES,
    MAX_DECOMPRESSED_BYTES,
    VERSION,
    catalogue_digest,
    decode,
    encode,
)

__all__ = [
    "MAX_COMPRESSED_BYTES",
    "MAX_DECOMPRESSED_BYTES",
    "VERSION",
    "Column",
    "WireError",
    "catalogue_digest",
    "decode",
    "encode",
    "pack",
    "unpack",
]
