"""The wire format: what is sent comes back equal, every version stays readable, bad bytes are refused with a name."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from rangewatch import wire
from rangewatch.wire import columns, messages
from rangewatch.wire.records import Batch, Event, RangeRows, Samples, SeriesRows, StreamHeader
from tests.agent.wire.samples import BATCH, GOLDEN, OPENING, SAMPLES

QUICK = settings(max_examples=40)


def same(left: Any, right: Any) -> bool:
    """Equality of messages, arrays by value with NaN equal to NaN and the sign of zero counting."""
    if isinstance(left, np.ndarray):
        left64, right64 = left.astype(np.float64), right.astype(np.float64)
        is_nan = np.isnan(left64) & np.isnan(right64)
        same_sign = np.signbit(left64) == np.signbit(right64)
        return left.shape == right.shape and bool((is_nan | ((left64 == right64) & same_sign)).all())
    if isinstance(left, msgspec.Struct):
        return type(left) is type(right) and all(
            same(getattr(left, name), getattr(right, name)) for name in left.__struct_fields__
        )
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(value, right[name]) for name, value in left.items())
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@pytest.mark.parametrize("name", SAMPLES)
def test_golden_files_of_every_version(name: str) -> None:
    assert same(wire.decode((GOLDEN / name).read_bytes()), SAMPLES[name])


@pytest.mark.parametrize("message", SAMPLES.values(), ids=list(SAMPLES))
def test_what_is_sent_comes_back(message: StreamHeader | Batch) -> None:
    assert same(wire.decode(wire.encode(message)), message)
    assert wire.VERSION == 2, "a new version needs golden files of its own"


def test_without_samples_an_older_server_can_read_it() -> None:
    versions = {
        name: zstandard.decompress(wire.encode(message))[len(messages.MAGIC)] for name, message in SAMPLES.items()
    }
    assert versions == {name: int(name[1]) for name in SAMPLES}


@pytest.mark.parametrize(
    ("code", "samples"),
    [
        ("shape_mismatch", Samples("gpu", "", np.array([1, 2]), {"x": np.zeros(3)})),
        ("bad_header", Samples("gpu", "", np.array([2, 1]), {})),
        ("bad_header", Samples("gpu", "", np.array([-1, 1]), {})),
        ("bad_header", Samples("gpu", "", np.array([0.5, 1.5]), {})),
        ("too_large", Samples("gpu", "", np.arange(3), {str(n): np.zeros(3) for n in range(200)})),
        ("too_large", Samples("gpu", "", np.zeros(70_000, np.int64), {})),
    ],
    ids=str,
)
def test_bad_samples_are_refused(code: str, samples: Samples) -> None:
    with pytest.raises(wire.WireError) as caught:
        wire.decode(wire.encode(Batch("r", 0, "i", 0, "c", samples=(samples,))))
    assert caught.value.code == code


def test_same_tells_apart() -> None:
    other = SeriesRows("loss", np.array([100, 101], np.int64), np.array([np.nan, -np.inf]))
    assert not same(other, BATCH.series[0]) and same(BATCH, BATCH)
    assert not same(np.array([0.0]), np.array([-0.0]))


arrays = st.one_of(
    st.lists(st.floats(width=64)),
    st.lists(st.floats(width=32)),
    st.lists(st.integers(0, 2**32).map(float)),
    st.tuples(st.floats(), st.integers(1, 200)).map(lambda pair: [pair[0]] * pair[1]),
).map(lambda values: np.array(values, np.float64))


@QUICK
@given(arrays)
def test_any_floats_come_back(values: Any) -> None:
    assert same(columns.unpack(*columns.pack(values)), values)


@QUICK
@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_any_integers_come_back(values: list[int]) -> None:
    array = np.array(values, np.int64)
    assert np.array_equal(columns.unpack(*columns.pack(array)), array)


def test_nan_bits_are_kept() -> None:
    odd = np.array([0x7FF8000000000001, 0x7FF0000000000001], np.uint64).view(np.float64)
    assert np.array_equal(columns.unpack(*columns.pack(odd)).view(np.uint64), odd.view(np.uint64))


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    ascending = st.sets(st.integers(0, 2**40), max_size=6).map(lambda found: np.array(sorted(found), np.int64))
    steps, tensors = draw(ascending), draw(ascending)
    cells = st.lists(st.floats(), min_size=steps.size * tensors.size, max_size=steps.size * tensors.size)
    shape = (tensors.size, steps.size)
    names = draw(st.sets(st.text(max_size=8), max_size=3))
    ranges = RangeRows(steps, tensors, {name: np.array(draw(cells)).reshape(shape) for name in names})
    at = draw(ascending)
    series = tuple(
        SeriesRows(name, at, np.arange(at.size) / 3) for name in draw(st.sets(st.text(max_size=8), max_size=2))
    )
    events = (
        Event(draw(st.text()), draw(st.integers(0, 2**62)), 0, draw(st.text()), {draw(st.text()): draw(st.text())}),
    )
    return Batch(
        draw(st.text()), 0, "i", draw(st.integers(0, 2**62)), "c", draw(st.sampled_from([ranges, None])), series, events
    )


@QUICK
@given(batches())
def test_any_batch_comes_back(batch: Batch) -> None:
    assert same(wire.decode(wire.encode(batch)), batch)


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "f4"])
def test_a_range_of_a_narrow_dtype_is_refused(dtype: str) -> None:
    """Its start and stride are 16 bytes, which two such values have not."""
    nbytes = 2 * columns.DTYPES[dtype].itemsize
    with pytest.raises(wire.WireError, match="a range is of 64-bit whole numbers"):
        columns.unpack(columns.Column(dtype, "range", 3, nbytes), b"\1" * nbytes)


def test_a_constant_column_costs_nothing() -> None:
    size = 1000
    ranges = RangeRows(np.arange(size), np.arange(size), {"numel": np.full((size, size), 12345.0)})
    assert len(wire.encode(Batch("r", 0, "i", 0, "c", ranges))) < 300
    assert wire.pack(np.full(size, 12345.0))[0].encoding == "const"


def test_the_digest_names_the_catalogue() -> None:
    catalogue = OPENING.catalogue
    shorter = msgspec.structs.replace(catalogue, tensors=catalogue.tensors[:-1])
    assert wire.catalogue_digest(catalogue) == wire.catalogue_digest(catalogue) != wire.catalogue_digest(shorter)


RAW = zstandard.ZstdDecompressor().decompress(wire.encode(BATCH))
HEADER_BYTES = struct.unpack_from("<4sHI", RAW)[2]


def packed(raw: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(raw)


def header_with(**changes: Any) -> bytes:
    """BATCH with another header around the same blocks."""
    header = msgspec.msgpack.decode(RAW[10 : 10 + HEADER_BYTES]) | changes
    encoded = msgspec.msgpack.encode(header)
    return packed(struct.pack("<4sHI", b"RWCH", 1, len(encoded)) + encoded + RAW[10 + HEADER_BYTES :])


def one_column(dtype: str, encoding: str, count: int, block: bytes, *, nbytes: int | None = None) -> bytes:
    """A batch whose series `loss` has steps 0..n and this column of values."""
    steps, steps_block = columns.pack(np.arange(3))
    values = [dtype, encoding, count, len(block) if nbytes is None else nbytes]
    series = [{"name": "loss", "steps": msgspec.to_builtins(steps), "values": values}]
    header = msgspec.msgpack.decode(RAW[10 : 10 + HEADER_BYTES]) | {"ranges": None, "series": series}
    encoded = msgspec.msgpack.encode(header)
    return packed(struct.pack("<4sHI", b"RWCH", 1, len(encoded)) + encoded + steps_block + block)


def unsorted_steps() -> bytes:
    return wire.encode(Batch("r", 0, "i", 0, "c", None, (SeriesRows("x", np.array([2, 1, 5]), np.zeros(3)),)))


BAD: dict[str, tuple[str, Callable[[], bytes]]] = {
    "empty": ("not_zstd", lambda: b""),
    "text": ("not_zstd", lambda: b"hello, world"),
    "gzip": ("not_zstd", lambda: b"\x1f\x8b\x08\x00" + bytes(40)),
    "size unstated": ("not_zstd", lambda: zstandard.ZstdCompressor(write_content_size=False).compress(RAW)),
    "frame cut short": ("truncated", lambda: wire.encode(BATCH)[:-5]),
    "bytes after the frame": ("truncated", lambda: wire.encode(BATCH) + b"x"),
    "empty frame": ("truncated", lambda: packed(b"")),
    "prefix cut short": ("truncated", lambda: packed(RAW[:9])),
    "header cut short": ("truncated", lambda: packed(RAW[:40])),
    "blocks cut short": ("truncated", lambda: packed(RAW[:-1])),
    "bytes after the blocks": ("bad_header", lambda: packed(RAW + b"x")),
    "wrong magic": ("bad_header", lambda: packed(b"HCWR" + RAW[4:])),
    "version 0": ("unsupported_version", lambda: packed(RAW[:4] + b"\x00\x00" + RAW[6:])),
    "version 3": ("unsupported_version", lambda: packed(RAW[:4] + b"\x03\x00" + RAW[6:])),
    "header length of 4 GiB": ("truncated", lambda: packed(RAW[:6] + b"\xff\xff\xff\xff" + RAW[10:])),
    "header is no msgpack": ("bad_header", lambda: packed(RAW[:10] + b"\xc1" * HEADER_BYTES)),
    "unknown message": ("bad_header", lambda: header_with(message="command")),
    "rank is text": ("bad_header", lambda: header_with(rank="0")),
    "sequence missing": ("bad_header", lambda: header_with(sequence=None)),
    "unknown dtype": ("bad_header", lambda: one_column("O8", "shuffle", 3, bytes(24))),
    "unknown encoding": ("bad_header", lambda: one_column("f8", "pickle", 3, bytes(24))),
    "fewer bytes than values": ("bad_header", lambda: one_column("f8", "shuffle", 3, bytes(23))),
    "negative count": ("too_large", lambda: one_column("f8", "const", -1, bytes(8))),
    "negative bytes": ("truncated", lambda: one_column("f8", "const", 3, bytes(8), nbytes=-8)),
    "more bytes than there are": ("truncated", lambda: one_column("f8", "shuffle", 3, bytes(24), nbytes=10**9)),
    "a constant that stands for 2^40 values": ("too_large", lambda: one_column("f8", "const", 2**40, bytes(8))),
    "values and steps differ": ("shape_mismatch", lambda: one_column("f8", "const", 4, bytes(8))),
    "range past its bounds": ("bad_header", lambda: one_column("i8", "range", 3, struct.pack("<2q", 2**62, 1))),
    "steps not ascending": ("bad_header", unsorted_steps),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_bytes_are_refused(what: str) -> None:
    code, make = BAD[what]
    with pytest.raises(wire.WireError) as caught:
        wire.decode(make())
    assert caught.value.code == code
    assert 0 < len(str(caught.value)) < 300 and "\n" not in str(caught.value)


def test_a_column_that_does_not_fit_its_rows() -> None:
    ranges = RangeRows(np.arange(3), np.arange(2), {"amax": np.zeros((3, 3))})
    with pytest.raises(wire.WireError) as caught:
        wire.decode(wire.encode(Batch("r", 0, "i", 0, "c", ranges)))
    assert caught.value.code == "shape_mismatch"


def test_bombs_stop_before_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = packed(bytes(wire.MAX_DECOMPRESSED_BYTES + 1))
    assert len(bomb) < 10_000
    with pytest.raises(wire.WireError, match="unpacks to"):
        wire.decode(bomb)
    with pytest.raises(wire.WireError, match="at most"):
        wire.decode(bytes(wire.MAX_COMPRESSED_BYTES + 1))
    monkeypatch.setattr(messages, "MAX_WINDOW_BYTES", 1 << 10)
    with pytest.raises(wire.WireError):
        wire.decode(packed(np.random.default_rng(0).bytes(1 << 20)))


@settings(max_examples=200)
@given(st.binary(max_size=200), st.integers(0, len(RAW) - 1), st.binary(min_size=1, max_size=4))
def test_any_bytes_are_decoded_or_refused(noise: bytes, position: int, patch: bytes) -> None:
    damaged = RAW[:position] + patch + RAW[position + len(patch) :]
    for body in (noise, packed(noise), packed(damaged)):
        try:
            wire.decode(body)
        except wire.WireError as error:
            assert error.code
