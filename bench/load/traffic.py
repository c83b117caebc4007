"""Realistic batches for the benchmarks: magnitudes wander, counts stand still, one full set in so many steps.

A value is one statistic of one tensor at one step of one rank. Both kinds of agent are made, as the real ones send: on
a CPU the five of `EVERY_STEP` are recorded each step and the full set every 100 steps, which travels and is not
counted, nor are loss and times; on an accelerator the fused kernel writes the whole set each step: ten values.
`traffic_table` says what the values are.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from load.traffic_table import PERIOD, table
from rangewatch import wire
from rangewatch.wire.records import Batch, RangeRows, RankInfo, SeriesRows, StreamHeader

Array = NDArray[Any]

EVERY_STEP = ("call_count", "numel", "amax", "nan_count", "inf_count")
FULL = ("full_numel", "amin", "zero_count", "subnormal_count", "sum_sq")
FULL_EVERY = 100  # steps: the default of agents on a CPU
PLACE_STEPS = 677  # between the places of two ranks in the table: a prime, so that 1,024 ranks have places of their own


def values_a_step(full_every: int = FULL_EVERY) -> int:
    """Values counted for one tensor at one step."""
    return len(EVERY_STEP) + (len(FULL) if full_every == 1 else 0)


class Rank:
    """One simulated rank: makes its opening and its batches in order."""

    def __init__(self, run: str, rank: int, world_size: int, tensors: int, full_every: int = FULL_EVERY) -> None:
        self.info = RankInfo(run, rank, world_size, rank % 8, f"host{rank // 8}", f"{run}-{rank}", 1)
        self.table = table(tensors)
        self.full_every = full_every
        self.random = np.random.default_rng(rank)
        self.step = 0
        self.sequence = 0

    def opening(self) -> bytes:
        """The first message."""
        return wire.encode(StreamHeader(self.info, self.table.known))

    def batch(self, steps: int) -> bytes:
        """The next `steps` steps."""
        return wire.encode(self.record(steps))

    def heartbeat(self) -> bytes:
        """An empty batch, which says that the rank is still there."""
        info, sequence = self.info, self.sequence
        self.sequence = sequence + 1
        digest = _digest(self.table.shape[0])
        return wire.encode(Batch(info.run, info.rank, info.incarnation, sequence, digest, settled=sequence))

    def record(self, steps: int, spike: tuple[int, int] | None = None) -> Batch:
        """As `batch`, not yet encoded; `spike` = (step, tensor) puts one Inf there."""
        at = np.arange(self.step, self.step + steps)
        columns = self._columns(at)
        if spike is not None and at[0] <= spike[0] <= at[-1]:
            columns["inf_count"] = columns["inf_count"].copy()
            columns["inf_count"][spike[1], spike[0] - at[0]] = 1.0
        rows = RangeRows(at, np.arange(self.table.shape[0]), columns)
        info, sequence = self.info, self.sequence
        self.step, self.sequence = self.step + steps, sequence + 1
        digest = _digest(self.table.shape[0])
        return Batch(info.run, info.rank, info.incarnation, sequence, digest, rows, self._series(at), settled=sequence)

    def _columns(self, at: Array) -> dict[str, Array]:
        constant, steps = self.table.constant, len(at)
        places = (at + self.info.rank * PLACE_STEPS) % PERIOD
        columns = {
            "call_count": constant(1.0, steps), "numel": constant(None, steps), "amax": self.table.part("amax", places),
            "nan_count": constant(0.0, steps), "inf_count": constant(0.0, steps),
        }  # fmt: skip
        full = at % self.full_every == 0
        if full.all():
            return (
                columns | {"full_numel": columns["numel"]} | {name: self.table.part(name, places) for name in FULL[1:]}
            )
        if full.any():
            columns["full_numel"] = np.where(full, columns["numel"], 0.0)
            for name in FULL[1:]:
                columns[name] = np.where(full, self.table.part(name, places), np.inf if name == "amin" else 0.0)
        return columns

    def _series(self, at: Array) -> tuple[SeriesRows, ...]:
        steps = len(at)
        return (
            SeriesRows("loss", at, 2 + self.random.normal(0, 0.1, steps)),
            SeriesRows("step_time_s", at, 0.1 + self.random.random(steps) * 0.01),
            SeriesRows("wall_time_s", at, 1.7e9 + at * 0.1),
            SeriesRows("loss_scale", at, np.full(steps, 65536.0)),
            SeriesRows("found_inf", at, np.zeros(steps)),
            SeriesRows("skipped_step", at, np.zeros(steps)),
        )


@cache
def _digest(tensors: int) -> str:
    return wire.catalogue_digest(table(tensors).known)
