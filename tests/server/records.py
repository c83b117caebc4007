"""What an agent sends, made by hand so that every value is known."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from rangewatch import statistics, wire
from rangewatch.wire.records import Batch, Catalogue, Event, RangeRows, RankInfo, SeriesRows, StreamHeader, TensorEntry

WHOLE = ("call_count", "numel", "amax", "nan_count", "inf_count")


def catalogue(
    tensors: int, dtype: str = "float16", kinds: tuple[str, ...] = ("output", "grad_output", "grad")
) -> Catalogue:
    entries = (
        TensorEntry(f"blocks.{i}.ff", kinds[i % len(kinds)], 0, dtype, (4, 8), i, "Linear") for i in range(tensors)
    )
    return Catalogue(statistics.ALL, tuple(entries))


def opening(
    known: Catalogue, run: str = "run", rank: int = 0, incarnation: str = "a", world_size: int = 1
) -> StreamHeader:
    return StreamHeader(RankInfo(run, rank, world_size, rank, "host", incarnation, time.time_ns()), known)


def batch(
    known: Catalogue, sequence: int, steps: np.ndarray | range, columns: dict[str, Any] | None = None, *,
    run: str = "run", rank: int = 0, incarnation: str = "a", series: dict[str, Any] | None = None,
    events: tuple[Event, ...] = (),
) -> Batch:  # fmt: skip
    """A batch over all tensors: one call, 32 elements, amax 1, nothing non-finite, unless `columns` say otherwise."""
    at = np.asarray(steps, np.int64)
    shape = (len(known.tensors), len(at))
    usual = {"call_count": 1.0, "numel": 32.0, "amax": 1.0, "nan_count": 0.0, "inf_count": 0.0} | (columns or {})
    ranges = RangeRows(
        at, np.arange(shape[0]), {n: np.broadcast_to(np.asarray(v, float), shape) for n, v in usual.items()}
    )
    rows = tuple(
        SeriesRows(name, at, np.broadcast_to(np.asarray(v, float), at.shape)) for name, v in (series or {}).items()
    )
    digest = wire.catalogue_digest(known)
    return Batch(run, rank, incarnation, sequence, digest, ranges if len(at) else None, rows, events)
