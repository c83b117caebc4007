"""What-if readings as a rank sends them, made by hand: which part of each format is lost is given."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rangewatch import statistics, wire
from rangewatch.statistics import formats
from rangewatch.wire.records import Batch, Catalogue, RangeRows, RankInfo, StreamHeader, TensorEntry

ELEMENTS = 1000
TENSORS = (
    TensorEntry("blocks.0.up", "output", 0, "bfloat16", (8, 4), 0, "Linear"),
    TensorEntry("blocks.0.up.weight", "grad", 0, "bfloat16", (4, 4), 1, "Parameter"),
    TensorEntry("head", "output", 0, "bfloat16", (8, 4), 2, "Linear"),
)
KNOWN = Catalogue(statistics.ALL + formats.ALL, TENSORS)

Lost = Mapping[tuple[int, str], Mapping[str, float]]
"""(tensor, format) -> sums; all others lose next to nothing."""


def send(
    post: Callable[[Any], Any], lost: Lost, *, run: str = "run", rank: int = 0, ranks: int = 1, steps: int = 20,
    read: tuple[int, ...] = (3, 4, 5), tensors: tuple[int, ...] = (0, 1, 2),
) -> None:  # fmt: skip
    """`steps` steps, of which those in `read` have a reading of each of `tensors`."""
    shape = (len(TENSORS), steps)
    columns = {name: np.full(shape, value) for name, value in {"call_count": 1.0, "numel": 32.0, "amax": 1.0}.items()}
    at = np.ix_(list(tensors), list(read))
    for each in formats.ALL:
        columns[each.name] = np.zeros(shape)
        if each.name in (formats.COUNT, formats.SUM_SQ):
            columns[each.name][at] = ELEMENTS
        elif each.name.endswith("error_sq"):
            columns[each.name][at] = 1e-3
    for (tensor, name), sums in lost.items():
        for what, value in sums.items():
            columns[formats.column(name, what)][tensor, list(read)] = value
    post(StreamHeader(RankInfo(run, rank, ranks, rank, "host", "a", time.time_ns()), KNOWN))
    sent = {name: values for name, values in columns.items() if values.any()}
    rows = RangeRows(np.arange(steps), np.arange(len(TENSORS)), sent)
    post(Batch(run, rank, "a", 0, wire.catalogue_digest(KNOWN), rows))
