"""A run of 100,000 steps x 300 tensors, healthy but for one step of one tensor, through the real writer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rangewatch.wire.records import Batch, StreamHeader
from tests.server.opened_store import Store
from tests.server.records import batch, catalogue, opening

STEPS, TENSORS = 100_000, 300
SPIKE_STEP, SPIKE_TENSOR = 54_321, 123
SIZE = 4_000  # steps a batch


def messages(run: str = "run") -> Iterator[StreamHeader | Batch]:
    """What the run's only rank sends."""
    known = catalogue(TENSORS)
    yield opening(known, run)
    for sequence, low in enumerate(range(0, STEPS, SIZE)):
        inf = np.zeros((TENSORS, SIZE)) if low <= SPIKE_STEP < low + SIZE else 0.0
        if isinstance(inf, np.ndarray):
            inf[SPIKE_TENSOR, SPIKE_STEP - low] = 1
        yield batch(known, sequence, range(low, low + SIZE), {"inf_count": inf}, run=run)


def build(path: Path) -> None:
    """Write it into a new SQLite file; some seconds."""
    store = Store(f"sqlite:///{path}")
    for message in messages():
        store.send(message)
    store.close()
