"""Runs of anything that ingest takes: values at the ends of what float64 holds, in all series and statistics, steps far
apart, ranks and incarnations that overlap. A run follows from its seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from rangewatch import statistics, wire
from rangewatch.wire.records import (
    KINDS,
    Batch,
    Catalogue,
    Event,
    RangeRows,
    RankInfo,
    SeriesRows,
    StreamHeader,
    TensorEntry,
)
from rangewatch_server.store.batch_checks import SERIES_BOUNDS

SERIES = (
    "loss", "loss_scale", "loss_scale/1", "found_inf", "skipped_step", "step_time_s", "wall_time_s", "agent_time_s",
    "weights_finite", "eval_passes", "eval_nonfinite", "bad_norms", "untrained_norms", "mask_share", "added_mask_share",
    "attention_share", "target_rms", "data_wait_s", "forward_s",
    "backward_s", "exposed_comm_s", "optimizer_s", "other_s", "lr", "mine",
)  # fmt: skip
VALUES = (
    0.0, -0.0, 1.0, 0.5, -1.0, 1e-320, 2.0**53, 2.0**63, 2.0**64, 1e15, 1e18, 1e300, -1e300, 1.7e308, -1.7e308,
    float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
COUNTS = (0.0, 1.0, 32.0, 2.0**31, 2.0**53)
MAGNITUDES = (0.0, 5e-324, 1e-40, 1.0, 65504.0, 65505.0, 3.4e38, 1e300, 1.7e308)
STEPS = (0, 1, 2, 7, 63, 64, 65, 4_096, 10**6, 10**9, 10**12 - 1, 10**12)
DTYPES = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "no dtype", "")
NAMES = ("blocks.0.ff", "", "\u202e", "a" * 300, "<script>", "x\n", "*", "module.weight", "é")


def messages(seed: int, run: str) -> Iterator[StreamHeader | Batch]:
    """Openings and batches of one run, by ranks and incarnations."""
    chance = random.Random(seed)
    known = _catalogue(chance)
    world_size = chance.choice((1, 2, 3, 2**31 - 1))
    for rank in chance.sample(range(4), chance.randint(1, 3)):
        for incarnation in ("a", "b")[: chance.randint(1, 2)]:
            began_ns = chance.choice((0, 1, 10**18, 2**62, 2**63 - 1))
            yield StreamHeader(RankInfo(run, rank, world_size, rank, "host", incarnation, began_ns), known)
            for sequence in range(chance.randint(1, 4)):
                yield _batch(chance, known, run, rank, incarnation, sequence)


def _catalogue(chance: random.Random) -> Catalogue:
    count = chance.randint(0, 6)
    entries = [
        TensorEntry(
            chance.choice(NAMES), chance.choice(KINDS), chance.choice((0, 1, 2**31 - 1)), chance.choice(DTYPES),
            tuple(chance.choice((0, 1, 2**62)) for _ in range(chance.randint(0, 4))),
            chance.choice((0, 1, 2**31 - 1)), chance.choice(NAMES),
        )
        for _ in range(count)
    ]  # fmt: skip
    return Catalogue(statistics.ALL, tuple(entries))


def _batch(chance: random.Random, known: Catalogue, run: str, rank: int, incarnation: str, sequence: int) -> Batch:
    first = chance.choice((0, sequence * 4, *STEPS))
    low = np.arange(first, first + chance.randint(1, 8))
    steps = np.array(sorted({*low[low <= 10**12].tolist(), *chance.sample(STEPS, chance.randint(0, 2))}), np.int64)
    series = tuple(_series(chance, name, steps) for name in chance.sample(SERIES, chance.randint(0, len(SERIES))))
    ranges = None if not known.tensors or chance.random() < 0.2 else _ranges(chance, known, steps)
    settled = chance.choice((0, sequence))
    events = (Event("failed", 2**63 - 1, int(steps[-1]), "x" * 50),) if chance.random() < 0.2 else ()
    digest = wire.catalogue_digest(known)
    return Batch(run, rank, incarnation, sequence, digest, ranges, series, events, settled)


def _series(chance: random.Random, name: str, steps: np.ndarray) -> SeriesRows:
    most = SERIES_BOUNDS.get(name)
    choices = VALUES
    if most is not None and chance.random() < 0.95:  # else refused, and the whole batch with it
        choices = (*(each for each in VALUES if 0 <= each <= most), most, float("nan"))
    usual = chance.choice(choices)
    values = [usual if chance.random() < 0.6 else chance.choice(choices) for _ in steps]
    return SeriesRows(name, steps, np.array(values))


def _ranges(chance: random.Random, known: Catalogue, steps: np.ndarray) -> RangeRows:
    shape = (len(known.tensors), len(steps))
    columns: dict[str, Any] = {}
    for each in known.statistics:
        if each.name in ("call_count", "numel", "amax", "nan_count", "inf_count") or chance.random() < 0.6:
            choices = COUNTS if each.merge == "sum" else MAGNITUDES
            values = [chance.choice(choices) for _ in range(shape[0] * shape[1])]
            columns[each.name] = np.array(values).reshape(shape)
    return RangeRows(steps, np.arange(shape[0]), columns)
