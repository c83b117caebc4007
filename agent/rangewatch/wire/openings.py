"""Catalogues in bounded memory: what their shapes hold is looked at before any number of them becomes an object.

A dimension of 3 bytes is 40 in memory: measured on a running server, an opening of 43 MiB with 11 million of them
(3 MiB packed) took 525 MiB, and eight at once 5.4 GiB. With the bounds here the worst that could be made takes 280 MiB
for a moment, and 230 MiB until its run is forgotten.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from rangewatch.wire.errors import WireError
from rangewatch.wire.records import (
    MAX_DIMS,
    MAX_STATISTICS,
    MAX_TENSORS,
    Catalogue,
    RankInfo,
    Statistic,
    StreamHeader,
    TensorEntry,
)

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
