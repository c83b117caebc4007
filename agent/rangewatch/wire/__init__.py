"""The wire format, shared with the server: `StreamHeader` and `Batch` records to bytes and back; see docs/wire.md.

In: records, or bytes from anybody. Out: bytes, or records within bounds; what is damaged raises `WireError`. Never:
torch, I/O, pickle.
"""

from rangewatch.wire.alike import Alike, decode_alike
from rangewatch.wire.columns import Column, pack, unpack
from rangewatch.wire.errors import WireError
from rangewatch.wire.messages import (
    MAX_COMPRESSED_BYTES,
    MAX_DECOMPRESSED_BYTES,
    PROCESS_ENDED,
    PROCESS_HEADER,
    VERSION,
    catalogue_digest,
    decode,
    encode,
)

__all__ = [
    "MAX_COMPRESSED_BYTES",
    "MAX_DECOMPRESSED_BYTES",
    "PROCESS_ENDED",
    "PROCESS_HEADER",
    "VERSION",
    "Alike",
    "Column",
    "WireError",
    "catalogue_digest",
    "decode",
    "decode_alike",
    "encode",
    "pack",
    "unpack",
]
