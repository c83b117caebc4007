"""Batches with known values, and what a reader of all of them would have."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from rangewatch import statistics, wire
from rangewatch.delivery.spool.folder import FORMAT, Owner, write_owner
from rangewatch.delivery.spool.process import Process
from rangewatch.delivery.spool.record import Encoded
from rangewatch.wire.records import (
    Batch,
    Catalogue,
    Event,
    RangeRows,
    RankInfo,
    Samples,
    SeriesRows,
    StreamHeader,
    TensorEntry,
)

INFO = RankInfo("run", 3, 4, 3, "host", "incarnation", 1)
TENSORS = 5
CATALOGUE = Catalogue(
    statistics.ALL, tuple(TensorEntry(f"layer{n}", "output", 0, "float32", (1,), n) for n in range(TENSORS))
)
DIGEST = wire.catalogue_digest(CATALOGUE)


def opening() -> bytes:
    return wire.encode(StreamHeader(INFO, CATALOGUE))


def batch(
    sequence: int, steps: Iterable[int], *, bad: Iterable[int] = (), noise: int = 0, events: tuple[Event, ...] = ()
) -> Batch:
    """`steps` with values that follow from each step's number; those in `bad` have a NaN. `noise`: bytes of samples."""
    numbers = np.array(list(steps), np.int64)
    values = np.random.default_rng(int(numbers[0]) if len(numbers) else 0).random((TENSORS, len(numbers)))
    columns = {
        "call_count": np.ones_like(values), "numel": np.full_like(values, 10.0), "amax": values * 100.0,
        "nan_count": np.broadcast_to(np.isin(numbers, list(bad)), values.shape).astype(float),
    }  # fmt: skip
    samples: tuple[Samples, ...] = ()
    if noise:
        rows = np.random.default_rng(sequence).random(noise // 8)
        times = np.full(len(rows), 1000 + sequence, np.int64)
        samples = (Samples("host", "", times, {"load": rows}),)
    series = (SeriesRows("loss", numbers, numbers * 0.5),) if len(numbers) else ()
    rows_ = RangeRows(numbers, np.arange(TENSORS, dtype=np.int64), columns) if len(numbers) else None
    return Batch(INFO.run, INFO.rank, INFO.incarnation, sequence, DIGEST, rows_, series, events, sequence, samples)


def encoded(sequence: int, steps: Iterable[int], **options: Any) -> Encoded:
    return Encoded(wire.encode(batch(sequence, steps, **options)), TENSORS, DIGEST, sequence)


def decoded(each: Encoded) -> Batch:
    message = wire.decode(each.body)
    assert isinstance(message, Batch)
    return message


def own(folder: Path, url: str = "http://127.0.0.1:9", pid: int = 2**22) -> None:
    """Make it the spool of a process that is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    write_owner(folder, Owner(FORMAT, INFO, url, Process(pid)))
