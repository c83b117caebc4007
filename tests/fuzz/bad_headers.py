"""Messages whose prefix, header, numbers, names or details cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tests.fuzz import template as t
from tests.fuzz.template import column

Made = Iterator[tuple[str, str, str, bytes]]
MIB = 1 << 20
ONE = column([1.0])
STEP = column([5])
TIMES = column([10, 20])
pack = msgspec.msgpack.encode


def cuts() -> Made:
    """The good message cut at every boundary of its parts, packed again."""
    header_end = t.PREFIX.size + t.HEADER_BYTES
    places = {
        "nothing": 0,
        "magic": 4,
        "version": 6,
        "length": 9,
        "prefix": 10,
        "header_1": 11,
        "header": header_end - 1,
    }
    for name, at in places.items():
        yield f"cut_after_{name}", "truncated", f"the message ends after {at} bytes", t.packed(t.RAW[:at])
    at = header_end
    for number, size in enumerate(_block_sizes(t.HEADER)):
        yield f"cut_before_block_{number}", "truncated", "the message ends before a column", t.packed(t.RAW[:at])
        yield (
            f"cut_in_block_{number}",
            "truncated",
            "the message ends inside a column",
            t.packed(t.RAW[: at + size - 1]),
        )
        at += size
    assert at == len(t.RAW)
    yield "bytes_after", "bad_header", "a byte after the last column", t.packed(t.RAW + b"\0")


def _block_sizes(header: dict[str, Any]) -> Iterator[int]:
    for table in ([header["ranges"]] if header["ranges"] else []) + list(header["series"]) + list(header["samples"]):
        for key in ("steps", "times_ns", "tensors", "values"):
            if key in table:
                yield table[key][3]
        yield from (each[3] for each in table.get("columns", {}).values())


def prefixes() -> Made:
    header = t.RAW[10:]
    yield "magic", "bad_header", "another magic", t.packed(b"HCWR" + t.RAW[4:])
    for version in (0, 3, 0xFFFF):
        yield (
            f"version_{version}",
            "unsupported_version",
            "a version that is not read",
            (t.packed(t.PREFIX.pack(b"RWCH", version, t.HEADER_BYTES) + header)),
        )
    for name, size in {"4_gib": 0xFFFF_FFFF, "one_more_than_all": len(t.RAW) - 9, "48_mib": 48 * MIB}.items():
        yield (
            f"header_of_{name}",
            "truncated",
            "a header past the end",
            t.packed(t.PREFIX.pack(b"RWCH", 2, size) + header),
        )
    yield (
        "header_too_short",
        "bad_header",
        "a header's length one too small",
        (t.packed(t.PREFIX.pack(b"RWCH", 2, t.HEADER_BYTES - 1) + header)),
    )
    yield (
        "header_too_long",
        "bad_header",
        "a header's length one too large",
        (t.packed(t.PREFIX.pack(b"RWCH", 2, t.HEADER_BYTES + 1) + header)),
    )
    yield "header_empty", "bad_header", "a header of no bytes", t.packed(t.message(b""))


def headers() -> Made:
    for name, header in {
        "reserved": b"\xc1" * 40, "a_number": pack(7), "a_list": pack([1, 2]), "null": b"\xc0", "an_empty_map": b"\x80",
        "list_of_2_pow_32": b"\xdd\xff\xff\xff\xff", "map_of_2_pow_32": b"\xdf\xff\xff\xff\xff",
        "text_of_2_pow_32": b"\xdb\xff\xff\xff\xff", "ten_thousand_deep": b"\x91" * 10_000,
    }.items():  # fmt: skip
        yield f"header_is_{name}", "bad_header", "a header that is no message", t.packed(t.message(header))
    yield "unknown_message", "bad_header", "a message of another kind", t.packed(t.bare(message="command"))
    yield (
        "message_of_two_lines",
        "bad_header",
        "a kind of message that the refusal quotes, with a line break",
        (t.packed(t.bare(message="batc\n"))),
    )
    yield "no_message", "bad_header", "a header that does not say what it is", t.packed(t.bare(message=...))
    for field in ("run", "rank", "incarnation", "sequence", "catalogue", "ranges", "series", "events"):
        yield f"no_{field}", "bad_header", f"a batch without {field}", t.packed(t.bare(**{field: ...}))
    for field, value in {"run": 7, "rank": "0", "sequence": 1.5, "series": {}, "events": None, "samples": 1}.items():
        yield f"{field}_of_another_type", "bad_header", f"{field} is {value!r}", t.packed(t.bare(**{field: value}))
    two = b"\x82" + (pack("amax") + pack(["f8", "const", 1, 8])) * 2
    yield "column_twice", "bad_header", "a column twice, with two blocks: the second name hides the first", (
        t.packed(t.with_header(STEP[1] + column([0])[1] + ONE[1] * 2, series=(), samples=(), ranges={
            "steps": STEP[0], "tensors": column([0])[0], "columns": msgspec.Raw(two)}))
    )  # fmt: skip
    yield "series_twice", "bad_header", "a series twice", (
        t.packed(t.with_header((STEP[1] + ONE[1]) * 2, ranges=None, samples=(), series=[
            {"name": "x", "steps": STEP[0], "values": ONE[0]}] * 2))
    )  # fmt: skip


def numbers() -> Made:
    yield "rank_negative", "bad_header", "rank -1", t.packed(t.bare(rank=-1))
    yield "rank_huge", "bad_header", "rank 2^64 - 1", t.packed(t.bare(rank=2**64 - 1))
    yield "rank_a_million", "bad_header", "one past the last rank", t.packed(t.bare(rank=1_000_000))
    for name, value in {"negative": -1, "2_pow_62": 2**62, "2_pow_64": 2**64 - 1}.items():
        yield f"sequence_{name}", "bad_header", f"sequence {value}", t.packed(t.bare(sequence=value))
    yield "settled_negative", "bad_header", "settled -1", t.packed(t.bare(settled=-1))
    yield "settled_past_sequence", "bad_header", "settled past its own sequence", t.packed(t.bare(settled=2))
    yield "settled_huge", "bad_header", "settled 2^64 - 1", t.packed(t.bare(settled=2**64 - 1))
    yield "far_ahead", "too_far_ahead", "a gap of 2^61 batches", t.packed(t.bare(sequence=2**61))
    for name, changes in {
        "time_negative": {"time_ns": -1}, "time_huge": {"time_ns": 2**64 - 1}, "step_negative": {"step": -2},
        "step_huge": {"step": 2**63},
    }.items():  # fmt: skip
        event = {"kind": "k", "time_ns": 1, "step": 0} | changes
        yield f"event_{name}", "bad_header", "an event out of bounds", t.packed(t.bare(events=[event]))


def texts() -> Made:
    for name, text in {
        "not_utf8": b"\xa2\xff\xfe", "half_a_character": b"\xa1\xc3", "surrogate": b"\xa3\xed\xa0\x80",
        "overlong": b"\xa2\xc0\x80", "nul": b"\xa3a\0b",
        "bytes": b"\xc4\x01a", "of_5_000": b"\xda\x13\x88" + b"x" * 5_000,
    }.items():  # fmt: skip
        yield f"run_{name}", "bad_header", "a name that cannot be", t.packed(t.bare(run=msgspec.Raw(text)))
        event = {"kind": "k", "time_ns": 1, "step": 0, "message": msgspec.Raw(text)}
        yield f"event_message_{name}", "bad_header", "a text that cannot be", t.packed(t.bare(events=[event]))
        series = [{"name": msgspec.Raw(text), "steps": STEP[0], "values": ONE[0]}]
        yield (
            f"series_{name}",
            "bad_header",
            "a name that cannot be",
            (t.packed(t.with_header(STEP[1] + ONE[1], ranges=None, samples=(), series=series))),
        )
    yield "source_empty", "bad_header", "samples of no source", t.packed(t.samples(TIMES, {}, source=""))
    yield "source_long", "bad_header", "a source of 101 bytes", t.packed(t.samples(TIMES, {}, source="x" * 101))
    yield "key_long", "bad_header", "a key of 513 bytes", t.packed(t.samples(TIMES, {}, key="x" * 513))
    yield "key_nul", "bad_header", "a key with NUL", t.packed(t.samples(TIMES, {}, key="a\0b"))


def details() -> Made:
    for name, data in {
        "deep": b"\x91" * 900 + b"\x90", "very_deep": b"\x91" * 100_000 + b"\x90", "key_is_a_map": b"\x81\x80\x01",
        "key_is_a_list_of_a_map": b"\x81\x91\x80\x01", "time_out_of_range": b"\xc7\x0c\xff" + b"\xff" * 12,
        "extension": b"\xd4\x05\x00", "list_of_2_pow_32": b"\xdd\xff\xff\xff\xff", "reserved": b"\xc1",
        "extension_past_the_end": b"\xc9\xff\xff\xff\xff\x01",
    }.items():  # fmt: skip
        yield f"details_{name}", "bad_header", "details that cannot be", t.packed(t.with_events(b"\x81\xa1a" + data))
    yield "details_a_list", "bad_header", "details that are no map", t.packed(t.with_events(b"\x90"))
    yield "details_of_2_mib", "too_large", "2 MiB of details", t.packed(t.with_events(pack({"a": "x" * 2 * MIB})))
    yield (
        "about_deep",
        "bad_header",
        "facts beside samples that are 900 deep",
        (t.packed(t.samples(TIMES, {}, about=msgspec.Raw(b"\x81\xa1a" + b"\x91" * 900 + b"\x90")))),
    )
    yield (
        "about_of_300_kib",
        "too_large",
        "300 KiB of facts",
        t.packed(t.samples(TIMES, {}, about={"a": "x" * 300 * 1024})),
    )
