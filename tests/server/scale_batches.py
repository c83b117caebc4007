"""Scales of low precision as ranks send them, made by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rangewatch import wire
from rangewatch.statistics import scales, sparse
from rangewatch.statistics.formats import SCALE_BIAS
from rangewatch.wire.events import ScaledOperand, ScaledOperands, event
from rangewatch.wire.records import Batch, Catalogue, RangeRows, RankInfo, StreamHeader, TensorEntry

LAYERS = ("blocks.0.up", "blocks.0.down")
ROLES = ("scaled_input", "scaled_weight", "scaled_grad_output")
TENSORS = tuple(
    TensorEntry(fqn, kind, 0, "bfloat16", (8, 32), at, "Linear")
    for at, (fqn, kind) in enumerate((fqn, kind) for fqn in LAYERS for kind in ROLES)
)
KNOWN = Catalogue(sparse.of_catalogue(histograms=False), TENSORS)
HISTORY = 256
UNKNOWN = "scales: no cast of it was seen: compiled, or cast by other means"


def operands(margin: float = 0.0) -> ScaledOperands:
    """The first layer casts by the step, the second by a history, with so much margin; of a third nothing is read."""
    cast = [
        ScaledOperand(
            each.fqn, each.kind, 0, "E5M2" if each.kind == "scaled_grad_output" else "E4M3", "tensor", "float32",
            "TransformerEngine" if each.fqn == LAYERS[1] else "torchao float8", "", HISTORY * (each.fqn == LAYERS[1]),
            margin * (each.fqn == LAYERS[1]),
        )
        for each in TENSORS
    ]  # fmt: skip
    return ScaledOperands((*cast, ScaledOperand("head", "scaled_input", unknown=UNKNOWN)))


def send(
    post: Callable[[Any], Any], bits: Any, *, age: Any = 1.0, run: str = "run", rank: int = 0, ranks: int = 1,
    steps: int = 20, said: ScaledOperands | None = None, first: int = 0, process: str = "a",
) -> None:  # fmt: skip
    """`bits`: what broadcasts to (6 operands, steps), log2 of the peaks; `age` the same, of the second layer. `said`:
    else `operands()`.
    """
    shape = (len(TENSORS), steps)
    peaks = 2.0 ** np.broadcast_to(np.asarray(bits, float), shape)
    ages = np.broadcast_to(np.asarray(age, float), shape) * np.repeat([0.0, 1.0], 3)[:, None]
    columns = {name: np.full(shape, value) for name, value in {"call_count": 1.0, "numel": 256.0, "amax": 3.0}.items()}
    columns |= {
        scales.PEAK: peaks, scales.AGE: ages, scales.HIGH: np.full(shape, SCALE_BIAS - 6.0),
        scales.LOW: np.full(shape, SCALE_BIAS + 7.5), scales.COUNT: np.full(shape, 200.0),
        scales.SATURATED: np.where(peaks > 1, 10.0, 0.0), scales.FLUSHED: np.full(shape, 20.0),
    }  # fmt: skip
    post(StreamHeader(RankInfo(run, rank, ranks, rank, "host", f"{process}{rank}", time.time_ns()), KNOWN))
    rows = RangeRows(np.arange(first, first + steps), np.arange(len(TENSORS)), columns)
    known = event(operands() if said is None else said, 1, first)
    post(Batch(run, rank, f"{process}{rank}", 0, wire.catalogue_digest(KNOWN), rows, events=(known,)))
