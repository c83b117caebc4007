"""Bodies that are no message at all, or that are far more than they look."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import zstandard

from tests.fuzz import template as t
from tests.fuzz.template import column

Made = Iterator[tuple[str, str, str, bytes]]
MIB = 1 << 20
STEP = column([5])
TIMES = column([10, 20])
pack = msgspec.msgpack.encode


def containers() -> Made:
    good = t.packed(t.RAW)
    skippable = struct.pack("<II", 0x184D2A50, 4) + b"abcd"
    yield "empty", "not_zstd", "no bytes at all", b""
    yield (
        "html",
        "not_zstd",
        "a proxy's error page",
        b"<!doctype html><html><body><h1>502 Bad Gateway</h1></body></html>",
    )
    yield "json", "not_zstd", "JSON", b'{"message": "batch", "run": "fuzz"}'
    yield "gzip", "not_zstd", "gzip", b"\x1f\x8b\x08\x00" + bytes(40)
    yield "pickle", "not_zstd", "a pickle", b"\x80\x04\x95\x0f\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x8c\x06system\x93."
    yield "zeros", "not_zstd", "a page of zeros, as a file system leaves them", bytes(4096)
    yield "zstd_magic_only", "not_zstd", "four bytes", good[:4]
    yield (
        "size_unstated",
        "not_zstd",
        "a frame that does not say how much it unpacks to",
        (zstandard.ZstdCompressor(write_content_size=False).compress(t.RAW)),
    )
    yield "two_frames", "truncated", "two frames", good + good
    yield "frame_and_a_byte", "truncated", "a byte after the frame", good + b"\0"
    yield "skippable_only", "truncated", "a skippable frame", skippable
    yield "skippable_first", "truncated", "a skippable frame, then a good one", skippable + good
    yield "skippable_last", "truncated", "a good frame, then a skippable one", good + skippable
    yield "empty_frame", "truncated", "a frame of nothing", t.packed(b"")
    yield "dictionary", "truncated", "a frame that needs a dictionary", _with_dictionary()
    flipped = bytearray(zstandard.ZstdCompressor(write_checksum=True, write_content_size=True).compress(t.RAW))
    flipped[-1] ^= 1
    yield "checksum", "truncated", "a frame whose checksum is wrong", bytes(flipped)
    window = zstandard.ZstdCompressionParameters(window_log=25, write_content_size=True)
    yield (
        "window",
        "bad_header",
        "zeros whose window is 32 MiB: unpacked in one piece it is never taken",
        _of_window(window),
    )
    for place in range(1, 8):
        yield f"frame_cut_{place}_of_8", _cut_code(good, place), "the frame ends early", good[: len(good) * place // 8]


def _cut_code(good: bytes, place: int) -> str:
    return "truncated" if len(good) * place // 8 >= zstandard.frame_header_size(good) else "not_zstd"


def _with_dictionary() -> bytes:
    words = zstandard.train_dictionary(1024, [np.random.default_rng(n).bytes(64) * 4 for n in range(100)])
    return zstandard.ZstdCompressor(dict_data=words, write_content_size=True).compress(t.RAW)


def _of_window(parameters: Any) -> bytes:
    # A single segment's window is its content: a stream's is what was asked for.
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj(size=48 * MIB)
    return packer.compress(bytes(48 * MIB)) + packer.flush()


def bombs() -> Made:
    yield "bomb_declared", "too_large", "some KiB that say they are 1 GiB", _zeros(1 << 30)
    yield "bomb_just_over", "too_large", "64 MiB and a byte", _zeros(64 * MIB + 1)
    yield "bomb_within", "bad_header", "64 MiB of zeros, which may be unpacked", _zeros(64 * MIB)
    small = bytearray(_zeros(64 * MIB))
    at = small.index(struct.pack("<I", 64 * MIB))
    small[at : at + 4] = struct.pack("<I", 100 * 1024)
    yield "bomb_that_lies", "truncated", "64 MiB that say they are 100 KiB", bytes(small)
    large = bytearray(_zeros(100 * 1024))
    at = large.index(struct.pack("<I", 100 * 1024))
    large[at : at + 4] = struct.pack("<I", 64 * MIB)
    yield "says_more_than_it_has", "truncated", "100 KiB that say they are 64 MiB", bytes(large)
    yield (
        "skippable_says_60_mib",
        "truncated",
        "12 bytes that say they are 60 MiB",
        (struct.pack("<II", 0x184D2A50, 60 * MIB) + b"abcd"),
    )
    many = b"\xdd" + struct.pack(">I", 10_000_000) + b"\x90" * 10_000_000
    yield (
        "lists_in_details",
        "too_large",
        "10^7 empty lists, a byte each: 714 MiB of objects",
        (t.packed(t.with_events(b"\x81\xa1a" + many))),
    )
    yield (
        "lists_in_about",
        "too_large",
        "10^7 empty lists in the facts beside samples",
        (t.packed(t.samples(TIMES, {}, about=msgspec.Raw(b"\x81\xa1a" + many)))),
    )
    yield (
        "lists_in_an_unknown_field",
        "bad_header",
        "10^7 empty lists that nobody reads, and no sequence",
        (t.packed(t.bare(sequence=..., more=msgspec.Raw(many)))),
    )
    series = pack({"name": "", "steps": ["i8", "shuffle", 0, 0], "values": ["f8", "shuffle", 0, 0]})
    yield "million_series", "too_large", "10^6 series", t.packed(t.bare(series=_list(series, 1_000_000)))
    event = pack({"kind": "", "time_ns": 0, "step": 0})
    yield "million_events", "too_large", "10^6 events", t.packed(t.bare(events=_list(event, 1_000_000)))
    names = b"".join(b"\xa4" + b"%04x" % (n & 0xFFFF) + pack(["f8", "const", 0, 8]) for n in range(1_000_000))
    columns = msgspec.Raw(b"\xdf" + struct.pack(">I", 1_000_000) + names)
    yield (
        "million_columns",
        "too_large",
        "10^6 columns",
        (t.packed(t.with_header(ranges={"steps": STEP[0], "tensors": STEP[0], "columns": columns}))),
    )
    entry = pack({"fqn": "", "kind": "grad", "index": 0, "dtype": "", "shape": [], "call_index": 0})
    yield (
        "million_tensors",
        "too_large",
        "a catalogue of 10^6 tensors",
        t.packed(t.opening(tensors=_list(entry, 10**6))),
    )
    versions = b"".join(b"\xa2" + b"%02x" % (n & 0xFF) + b"\xa0" for n in range(1_000_000))
    yield (
        "million_versions",
        "too_large",
        "10^6 versions of software",
        (t.packed(t.opening(versions=msgspec.Raw(b"\xdf" + struct.pack(">I", 1_000_000) + versions)))),
    )
    sizes = msgspec.Raw(b"\xdd" + struct.pack(">I", 10_000_000) + b"\xcd\x03\x03" * 10_000_000)
    yield (
        "shape_of_ten_million",
        "too_large",
        "a tensor with 10^7 dimensions",
        t.packed(t.opening(tensors=[t.entry(shape=sizes)])),
    )
    span, tensors = (["i8", "range", 4096, 16], struct.pack("<2q", 0, 1)), ["i8", "range", 8180, 16]
    cells = (["i8", "range", 4096 * 8180, 16], struct.pack("<2q", 0, 1))
    yield (
        "range_of_33_million",
        "bad_header",
        "16 bytes that are 33 million cells",
        (t.packed(t.ranges(span, (tensors, span[1]), {"amax": cells}))),
    )


def _zeros(size: int) -> bytes:
    packer = zstandard.ZstdCompressor(level=3).compressobj(size=size)
    return b"".join(packer.compress(bytes(min(MIB, size - at))) for at in range(0, size, MIB)) + packer.flush()


def _list(item: bytes, count: int) -> msgspec.Raw:
    return msgspec.Raw(b"\xdd" + struct.pack(">I", count) + item * count)
