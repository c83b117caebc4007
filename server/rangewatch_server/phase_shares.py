"""What steps spend their time on, by rank: which phase dominates, and who waits for its data loader. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

PHASES = ("data_wait", "forward", "backward", "exposed_comm", "optimizer", "other")
"""They add up to a step. The series of each is its name and `_s`."""

DATA_WAIT = PHASES.index("data_wait")

LAST_STEPS = 50
"""Steps that are judged: a stall of some of them, as at the beginning of an epoch, moves no median."""

LEAST_STEPS = 5
"""With fewer nothing is said: the first steps fill caches and compile."""

LOADER_BOUND_SHARE = 0.3
"""Of the step, spent waiting for data. A loader that keeps up costs a percent or two."""


class RankShares(msgspec.Struct, frozen=True):
    """One rank: the median share of each phase over the steps judged, None where a phase is unknown."""

    rank: int
    steps: int
    """How many were judged; with fewer than `LEAST_STEPS` all shares are None."""
    shares: dict[str, float | None]
    dominant: str | None
    is_loader_bound: bool


class PhaseShares(msgspec.Struct, frozen=True):
    """All ranks. `dominant` is the phase that takes most of the mean rank's step; None when no rank could be judged."""

    ranks: tuple[RankShares, ...]
    dominant: str | None
    loader_bound_ranks: tuple[int, ...]

    @property
    def is_loader_bound(self) -> bool:
        """Whether any rank is: in a synchronous run the others then wait for that one in their collectives."""
        return bool(self.loader_bound_ranks)


def phase_shares(
    ranks: Sequence[int], seconds: Array, last: int = LAST_STEPS, loader_bound_share: float = LOADER_BOUND_SHARE
) -> PhaseShares:
    """Judge the last `last` steps of each rank.

    `seconds`: (ranks, phases in the order of `PHASES`, steps ascending) float64, NaN where a phase is unknown or the
    step has not been told. Raises `ValueError` for another shape.
    """
    if seconds.shape[:2] != (len(ranks), len(PHASES)) or seconds.ndim != 3:
        raise ValueError(f"phase_shares: seconds {seconds.shape}, not ({len(ranks)}, {len(PHASES)}, steps)")
    found = tuple(_of_rank(rank, each, last, loader_bound_share) for rank, each in zip(ranks, seconds, strict=True))
    mean = {phase: sum(each.shares[phase] or 0.0 for each in found) for phase in PHASES}
    return PhaseShares(
        found,
        max(mean, key=lambda phase: mean[phase]) if any(mean.values()) else None,
        tuple(each.rank for each in found if each.is_loader_bound),
    )


def _of_rank(rank: int, seconds: Array, last: int, loader_bound_share: float) -> RankShares:
    totals = np.where(np.isfinite(seconds), seconds, 0.0).sum(axis=0)
    judged = np.flatnonzero(totals > 0)[-last:]
    if len(judged) < LEAST_STEPS:
        return RankShares(rank, len(judged), dict.fromkeys(PHASES), None, is_loader_bound=False)
    shares = seconds[:, judged] / totals[judged]
    known = np.isfinite(shares).any(axis=1)
    medians = np.median(np.where(np.isfinite(shares), shares, 0.0), axis=1)
    return RankShares(
        rank,
        len(judged),
        {phase: float(medians[at]) if known[at] else None for at, phase in enumerate(PHASES)},
        PHASES[int(medians.argmax())],
        is_loader_bound=bool(medians[DATA_WAIT] > loader_bound_share),
    )
