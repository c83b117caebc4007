"""Realistic batches for the benchmarks: magnitudes wander, the rest is constant, one full set in a hundred steps.

A value is one statistic of one tensor at one step of one rank; only the five that are recorded every step are counted
(call_count, numel, amax, nan_count, inf_count), and not the full set, loss or times that travel with them.
"""

from __future__ import annotations

import numpy as np

from rangewatch import statistics, wire
from rangewatch.records import Batch, Catalogue, Opening, RangeRows, RankInfo, SeriesRows, TensorEntry

EVERY_STEP = ("call_count", "numel", "amax", "nan_count", "inf_count")
FULL_EVERY = 100  # steps: the agent's default cadence for the full set


def catalogue(tensors: int) -> Catalogue:
    """A transformer's worth of names: outputs, their gradients, and parameter gradients."""
    kinds = ("output", "grad_output", "grad")
    entries = (
        TensorEntry(
            f"decoder.block.{i // 18}.layer.{i // 3 % 6}.DenseReluDense.wo", kinds[i % 3], 0,
            "float32" if i % 3 == 2 else "float16", (8, 512, 768), i, "Linear",
        )
        for i in range(tensors)
    )  # fmt: skip
    return Catalogue(statistics.ALL, tuple(entries))


class Rank:
    """One simulated rank: makes its opening and its batches in order."""

    def __init__(self, run: str, rank: int, world_size: int, known: Catalogue, seed: int = 0) -> None:
        self.info = RankInfo(run, rank, world_size, rank, f"host{rank // 8}", f"{run}-{rank}", 1)
        self.known = known
        self.digest = wire.catalogue_digest(known)
        self.random = np.random.default_rng((seed, rank))
        self.level = self.random.normal(0, 3, size=(len(known.tensors), 1))
        self.step = 0
        self.sequence = 0

    def opening(self) -> bytes:
        """The first message."""
        return wire.encode(Opening(self.info, self.known))

    def batch(self, steps: int, spike: tuple[int, int] | None = None) -> bytes:
        """The next `steps` steps; `spike` = (step, tensor) puts one Inf there."""
        return wire.encode(self.record(steps, spike))

    def record(self, steps: int, spike: tuple[int, int] | None = None) -> Batch:
        """As `batch`, not yet encoded."""
        at = np.arange(self.step, self.step + steps)
        shape = (len(self.known.tensors), steps)
        walk = np.cumsum(self.random.normal(0, 0.02, size=shape), axis=1)
        log2 = self.level + walk + self.random.normal(0, 0.1, size=shape)
        self.level = self.level + walk[:, -1:]
        # Magnitudes of half-precision tensors have 11 significant bits.
        amax = np.exp2(np.clip(log2, -20, 14)).astype(np.float16).astype(np.float64)
        one = np.ones(shape)
        columns = {
            "call_count": one,
            "numel": one * 3_145_728.0,
            "amax": amax,
            "nan_count": 0 * one,
            "inf_count": 0 * one,
        }
        columns |= self._full(at, amax)
        if spike is not None and at[0] <= spike[0] <= at[-1]:
            columns["inf_count"] = columns["inf_count"].copy()
            columns["inf_count"][spike[1], spike[0] - at[0]] = 1.0
        series = (
            SeriesRows("loss", at, 2 + self.random.normal(0, 0.1, steps)),
            SeriesRows("step_time_s", at, 0.1 + self.random.random(steps) * 0.01),
            SeriesRows("wall_time_s", at, 1.7e9 + at * 0.1),
            SeriesRows("loss_scale", at, np.full(steps, 65536.0)),
            SeriesRows("found_inf", at, np.zeros(steps)),
            SeriesRows("skipped_step", at, np.zeros(steps)),
        )
        info = self.info
        made = Batch(
            info.run,
            info.rank,
            info.incarnation,
            self.sequence,
            self.digest,
            RangeRows(at, np.arange(shape[0]), columns),
            series,
        )
        self.step += steps
        self.sequence += 1
        return made

    def _full(self, at: np.ndarray, amax: np.ndarray) -> dict[str, np.ndarray]:
        full = at % FULL_EVERY == 0
        if not full.any():
            return {}
        return {
            "full_numel": np.where(full, 3_145_728.0, 0.0) * np.ones(amax.shape),
            "amin": np.where(full, amax * 2.0**-20, np.inf),
            "zero_count": np.where(full, self.random.integers(0, 1_000, amax.shape), 0.0),
            "subnormal_count": np.where(full, self.random.integers(0, 100, amax.shape), 0.0),
            "sum_sq": np.where(full, amax**2 * 1e5, 0.0),
        }
