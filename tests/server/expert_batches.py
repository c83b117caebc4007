"""Tokens by expert as ranks send them, made by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rangewatch import wire
from rangewatch.statistics import experts, sparse
from rangewatch.wire.events import Router, Routers, event
from rangewatch.wire.records import Batch, Catalogue, RangeRows, RankInfo, StreamHeader, TensorEntry

EXPERTS, TOP_K, TOKENS = 4, 2, 100
TENSORS = (
    TensorEntry("blocks.0.router.gate", "output", 0, "float32", (8, 4), 0, "Linear"),
    TensorEntry("blocks.0.router", "output", 0, "float32", (8, 2), 1, "TopKRouter"),
    TensorEntry("blocks.1.router", "output", 0, "float32", (8, 4), 2, "TopKRouter"),
)
KNOWN = Catalogue(sparse.of_catalogue(histograms=False, most_experts=EXPERTS), TENSORS)
ROUTERS = Routers((
    Router("blocks.0.router", EXPERTS, TOP_K, 0, "blocks.0.router.gate", 0, sees_drops=True),
    Router("blocks.1.router", EXPERTS, TOP_K, 0, "", 0),
))  # fmt: skip


def send(
    post: Callable[[Any], Any], loads: Any, *, run: str = "run", rank: int = 0, ranks: int = 1, steps: int = 20
) -> None:
    """`loads`: (2 routers, EXPERTS) or (2, EXPERTS, steps) of tokens; router 0 drops 10 of each step."""
    loads = np.asarray(loads, float)
    loads = np.broadcast_to(loads if loads.ndim == 3 else loads[..., None], (2, EXPERTS, steps))
    shape = (len(TENSORS), steps)
    columns = {name: np.full(shape, value) for name, value in {"call_count": 1.0, "numel": 32.0, "amax": 3.0}.items()}
    columns[experts.ROUTED] = np.tile([[0.0], [TOKENS], [TOKENS]], steps)
    columns[experts.DROPPED] = np.tile([[0.0], [10.0], [0.0]], steps)
    columns[experts.ENTROPY_COUNT] = np.tile([[50.0], [0.0], [0.0]], steps)
    columns[experts.ENTROPY] = np.tile([[50 * 1250.0], [0.0], [0.0]], steps)
    for expert in range(EXPERTS):
        columns[experts.column(expert)] = np.vstack([np.zeros((1, steps)), loads[:, expert]])
    post(StreamHeader(RankInfo(run, rank, ranks, rank, "host", f"a{rank}", time.time_ns()), KNOWN))
    rows = RangeRows(np.arange(steps), np.arange(len(TENSORS)), columns)
    known = event(ROUTERS, 1, 0)
    post(Batch(run, rank, f"a{rank}", 0, wire.catalogue_digest(KNOWN), rows, events=(known,)))
