"""The messages of the golden files. Never change them: they say what version 1 means. A new version adds its own.

`python -m tests.agent.wire.samples` writes files that do not exist yet.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

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

GOLDEN = Path(__file__).parent / "golden"

CATALOGUE = Catalogue(
    statistics=(
        Statistic("call_count", "calls", "sum", 0.0, "How often."),
        Statistic("amax", "magnitude", "max", 0.0, "Largest."),
        Statistic("amin", "magnitude", "min", float("inf"), "Smallest."),
    ),
    tensors=(
        TensorEntry("", "output", 0, "float32", (8, 128, 64), 1, "Net"),
        TensorEntry("blocks.0.ff.wo", "output", 0, "float16", (8, 128, 64), 0, "Linear"),
        TensorEntry("blocks.0.ff.wo.weight", "grad", 0, "bfloat16", (64, 64), 2, "Parameter"),
        TensorEntry("name with \u00fc and <b>", "grad_output", 3, "float8_e4m3fn", (), 3, ""),
    ),
)

OPENING = StreamHeader(
    RankInfo(
        run="t5-base", rank=1, world_size=2, local_rank=1, host="node-7", incarnation="0123456789abcdef" * 2,
        started_ns=1_790_000_000_123_456_789, pid=4242, device="NVIDIA H100", versions={"torch": "2.13.0"},
        loss_scaled=True,
    ),
    CATALOGUE,
)  # fmt: skip

BATCH = Batch(
    run="t5-base",
    rank=1,
    incarnation="0123456789abcdef" * 2,
    sequence=17,
    catalogue=wire.catalogue_digest(CATALOGUE),
    ranges=RangeRows(
        steps=np.array([100, 101, 105], np.int64),
        tensors=np.array([0, 2, 3], np.int64),
        columns={
            "call_count": np.ones((3, 3)),
            "amax": np.array([[1.5, 65504.0, 3.0e38], [0.1, 1e-45, 0.0], [1.0 / 3.0, 1e300, 448.0]]),
            "amin": np.array([[np.inf, 5e-324, 2.0**-24], [1.0, 2.0, 3.0], [-0.0, 0.0, 255.0]]),
        },
    ),
    series=(
        SeriesRows("loss", np.array([100, 101], np.int64), np.array([np.nan, np.inf])),
        SeriesRows("wall_time_s", np.arange(100, 104, dtype=np.int64), np.array([1.79e9, 1.79e9 + 0.25, 1.8e9, 0.1])),
        SeriesRows("empty", np.empty(0, np.int64), np.empty(0)),
    ),
    events=(
        Event("attached", 1_790_000_000_000_000_000, 0, "hello",
              {"options": {"kinds": ["output"], "x": None, "y": 1.5}}),
        Event("dropped", 1, 2**40, "", {"queue_full": 3}),
    ),
)  # fmt: skip

SETTLED = Batch("r", 0, "i", 9, "c", settled=7)  # `settled` came after the first files, and is 0 where it is left out

# Version 2 came with samples; what has none is written as version 1.
SAMPLED = Batch(
    "r", 3, "i", 4, "c",
    samples=(
        Samples(
            "gpu", "GPU-1", np.array([5, 1_790_000_000_000_000_000, 1_790_000_000_000_000_000], np.int64),
            {"power_w": np.array([np.nan, 431.5, 700.0]), "step": np.array([1.0, 1.0, 2.0**40])},
            {"name": "NVIDIA H100", "power_limit_w": 700.0},
        ),
        Samples("host", "", np.empty(0, np.int64), {"cpu_percent": np.empty(0)}),
    ),
)  # fmt: skip

SAMPLES = {
    "v1_opening.rwch": OPENING, "v1_batch.rwch": BATCH, "v1_batch_settled.rwch": SETTLED, "v2_batch.rwch": SAMPLED,
}  # fmt: skip

if __name__ == "__main__":
    for name, message in SAMPLES.items():
        if not (GOLDEN / name).exists():
            (GOLDEN / name).write_bytes(wire.encode(message))
