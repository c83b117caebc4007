"""Good messages, and how to take one apart and put it together wrongly.

Their catalogue is their own, so that a statistic more in the product does not make the stored corpus stale.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np
import zstandard

from rangewatch import wire
from rangewatch.wire.records import (
    Batch,
    Catalogue,
    Event,
    RangeRows,
    RankInfo,
    Samples,
    SeriesRows,
    Statistic,
    StreamHeader,
    TensorEntry,
)

RUN, INCARNATION = "fuzz", "a"
STATISTICS = (
    Statistic("call_count", "calls", "sum", 0.0, "How often."),
    Statistic("amax", "magnitude", "max", 0.0, "Largest."),
    Statistic("nan_count", "elements", "sum", 0.0, "NaN."),
    Statistic("inf_count", "elements", "sum", 0.0, "Inf."),
)
TENSORS = tuple(TensorEntry(f"blocks.{n}", "output", 0, "float16", (4, 8), n, "Linear") for n in range(3))
CATALOGUE = Catalogue(STATISTICS, TENSORS)
INFO = RankInfo(RUN, 0, 1, 0, "host", INCARNATION, 1_790_000_000_000_000_000, versions={"torch": "2.13.0"})
OPENING = StreamHeader(INFO, CATALOGUE)


def good_batch(sequence: int) -> Batch:
    """Three tensors at four steps, a series, an event and samples."""
    steps = np.arange(4 * sequence, 4 * sequence + 4)
    columns = {
        "call_count": np.ones((3, 4)), "amax": np.array([[1.5, 2.25, 0.1, 65504.0]] * 3), "nan_count": np.zeros((3, 4)),
    }  # fmt: skip
    about = {"name": "NVIDIA H100", "names": {"recovery_action": {"0": "none"}}}
    times = np.array([1_790_000_000_000_000_000, 1_790_000_000_000_000_007])
    samples = Samples("gpu", "GPU-1", times, {"power_w": np.array([np.nan, 431.5])}, about)
    event = Event("attached", 1_790_000_000_000_000_000, 0, "hello", {"options": {"kinds": ["output"], "x": None}})
    return Batch(
        RUN, 0, INCARNATION, sequence, wire.catalogue_digest(CATALOGUE), RangeRows(steps, np.arange(3), columns),
        (SeriesRows("loss", steps, np.array([0.5, np.nan, 1e300, -0.0])),), (event,), 0, (samples,),
    )  # fmt: skip


PREFIX = struct.Struct("<4sHI")
RAW = zstandard.decompress(wire.encode(good_batch(1)))
HEADER_BYTES = PREFIX.unpack_from(RAW)[2]
HEADER: dict[str, Any] = msgspec.msgpack.decode(RAW[PREFIX.size : PREFIX.size + HEADER_BYTES])
BLOCKS = RAW[PREFIX.size + HEADER_BYTES :]
OPENING_HEADER: dict[str, Any] = {"message": "opening", "opening": msgspec.to_builtins(OPENING)}


def packed(raw: bytes) -> bytes:
    """As an agent packs it, and smaller."""
    return zstandard.ZstdCompressor(level=19, write_content_size=True).compress(raw)


def message(header: bytes, blocks: bytes = b"", magic: bytes = b"RWCH", version: int = 2) -> bytes:
    """A message, not packed, whose prefix tells the truth."""
    return PREFIX.pack(magic, version, len(header)) + header + blocks


def with_header(blocks: bytes = BLOCKS, **fields: Any) -> bytes:
    """The good batch's message with other fields in its header; `...` takes one away."""
    header = {name: value for name, value in (HEADER | fields).items() if value is not ...}
    return message(msgspec.msgpack.encode(header), blocks)


def bare(**fields: Any) -> bytes:
    """A batch without rows, but for these fields."""
    return with_header(b"", **({"ranges": None, "series": (), "samples": ()} | fields))


def with_events(data: bytes) -> bytes:
    """A batch with one event, whose details are these bytes."""
    event = {"kind": "k", "time_ns": 1, "step": 0, "data": msgspec.Raw(data)}
    return bare(events=[event])


def opening(**changes: Any) -> bytes:
    """The opening's message with other fields in its info or its catalogue."""
    info, catalogue = msgspec.to_builtins(INFO), msgspec.to_builtins(CATALOGUE)
    for name, value in changes.items():
        (catalogue if name in catalogue else info)[name] = value
    return message(msgspec.msgpack.encode({"message": "opening", "opening": {"info": info, "catalogue": catalogue}}))


def column(values: Any) -> tuple[list[Any], bytes]:
    """A column's description as the header has it, and its block."""
    described, block = wire.pack(np.asarray(values))
    return list(msgspec.structs.astuple(described)), block


def one_series(steps: Any, values: Any) -> bytes:
    """A batch of one series; each a (description, block)."""
    series = [{"name": "loss", "steps": steps[0], "values": values[0]}]
    return with_header(steps[1] + values[1], ranges=None, samples=(), series=series)


def ranges(steps: Any, tensors: Any, columns: dict[str, Any]) -> bytes:
    """A batch of ranges; each column a (description, block)."""
    header = {"steps": steps[0], "tensors": tensors[0], "columns": {name: each[0] for name, each in columns.items()}}
    blocks = b"".join(each[1] for each in (steps, tensors, *columns.values()))
    return with_header(blocks, ranges=header, series=(), samples=())


def samples(times: Any, columns: dict[str, Any], **fields: Any) -> bytes:
    """A batch of one table of samples; each column a (description, block)."""
    header = {
        "source": "gpu", "key": "GPU-1", "times_ns": times[0],
        "columns": {name: each[0] for name, each in columns.items()}, "about": {},
    } | fields  # fmt: skip
    return with_header(
        b"".join(each[1] for each in (times, *columns.values())), ranges=None, series=(), samples=[header]
    )


def entry(**fields: Any) -> dict[str, Any]:
    """A tensor of the catalogue, with other fields."""
    found: dict[str, Any] = msgspec.to_builtins(TENSORS[0])
    return found | fields
