"""Batches with known values, and what a reader of all of them would have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
RULES = {"max": max, "min": min, "sum": lambda left, right: left + right}


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


def encoded(sequence: int, steps: Iterable[int], whole: tuple[int, ...] = (), **options: Any) -> Encoded:
    return Encoded(wire.encode(batch(sequence, steps, **options)), TENSORS, DIGEST, sequence, whole)


def decoded(each: Encoded) -> Batch:
    message = wire.decode(each.body)
    assert isinstance(message, Batch)
    return message


def whole(batches: Iterable[Batch], spans: int) -> dict[str, Mapping[int, np.ndarray]]:
    """Statistic -> step // spans -> (TENSORS,): what is left when all steps of a span are merged."""
    found: dict[str, dict[int, np.ndarray]] = {each.name: {} for each in statistics.ALL}
    for each in batches:
        if each.ranges is None:
            continue
        for statistic in statistics.ALL:
            values = each.ranges.columns.get(statistic.name)
            if values is None:
                continue
            for column, step in enumerate(each.ranges.steps.tolist()):
                group, new = step // spans, values[:, column].astype(np.float64)
                old = found[statistic.name].get(group)
                merge = {"max": np.maximum, "min": np.minimum, "sum": np.add}[statistic.merge]
                found[statistic.name][group] = new if old is None else merge(old, new)
    return {name: groups for name, groups in found.items() if groups}


def assert_same(left: dict[str, Mapping[int, np.ndarray]], right: dict[str, Mapping[int, np.ndarray]]) -> None:
    assert left.keys() == right.keys()
    for name, groups in left.items():
        assert groups.keys() == right[name].keys(), name
        for group, values in groups.items():
            np.testing.assert_allclose(values, right[name][group], rtol=1e-12, err_msg=f"{name} {group}")


def own(folder: Path, url: str = "http://127.0.0.1:9", pid: int = 2**22) -> None:
    """Make it the spool of a process that is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    write_owner(folder, Owner(FORMAT, INFO, url, Process(pid)))
