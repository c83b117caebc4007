"""What a late rank spends the time in that the others wait for: which phase of its step is longer than theirs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from rangewatch_server.collectives.records import UNKNOWN, Array
from rangewatch_server.collectives.waits import Waits

DATA_LOADER = "data loader"
FORWARD = "forward"
BEFORE_BACKWARD = "before backward"
INSIDE_BACKWARD = "inside backward"
OPTIMIZER = "optimizer"
COMMUNICATION = "communication"
ELSEWHERE = "unknown"

PHASES = {
    "data_wait_s": DATA_LOADER,
    "forward_s": FORWARD,
    "other_s": BEFORE_BACKWARD,  # after the forward, or between two steps: it comes before the next backward either way
    "backward_s": INSIDE_BACKWARD,
    "optimizer_s": OPTIMIZER,
    "exposed_comm_s": COMMUNICATION,  # such as in a rooted or point-to-point one, which no wait is known of
}
_BECAUSE = {
    DATA_LOADER: "the extra time is in its data loader.",
    FORWARD: "the extra time is in forward.",
    BEFORE_BACKWARD: "the extra time is between its forward and its backward, or between two steps.",
    INSIDE_BACKWARD: "the extra time is in backward.",
    OPTIMIZER: "the extra time is in the optimizer.",
    COMMUNICATION: "the extra time is in communication of its own.",
}
ABOUT = 0.5
"""A phase explains a cost when it is longer than the other ranks' by at least this share of it."""
FIRST = 0.7
"""Share of a cost that falls on each step's first collective, from which on the delay lies before that."""


class PhaseSeries(msgspec.Struct, frozen=True):
    """One rank's phases. `steps`: (n,) int64. `seconds`: `data_wait_s`, `forward_s`, `backward_s`, `optimizer_s`,
    `exposed_comm_s`, `other_s`, `step_time_s` -> (n,) float64; NaN where unknown, and any of them may be missing."""

    steps: Array
    seconds: Mapping[str, Array]

    def mean(self, phase: str, steps: Array) -> float:
        """Mean over those of `steps` in which it is known; NaN where it is in none."""
        if phase not in self.seconds or not len(self.steps):
            return float("nan")
        values = self.seconds[phase][(self.steps >= steps[0]) & (self.steps <= steps[-1])]
        known = values[np.isfinite(values)]
        return float(known.mean()) if len(known) else float("nan")


class Location(msgspec.Struct, frozen=True):
    """`excess_s`: phase -> seconds a step that it is longer than the others' median. `first_share`: see `FIRST`."""

    where: str
    because: str
    excess_s: dict[str, float]
    first_share: float


def location_of(waits: Waits, rank: int, steps: Array, cost_s: float, phases: Mapping[int, PhaseSeries]) -> Location:
    """Where `rank` loses `cost_s` a step, in the window of `steps` (ascending)."""
    excess_s = _excess_s(rank, steps, phases)
    first_share, in_backward = _pattern(waits, rank, steps)
    where = _where(excess_s, cost_s, first_share, in_backward=in_backward)
    because = _BECAUSE.get(where) or _by_pattern(first_share)
    return Location(where, because, excess_s, first_share)


def _excess_s(rank: int, steps: Array, phases: Mapping[int, PhaseSeries]) -> dict[str, float]:
    excess_s: dict[str, float] = {}
    if rank not in phases:
        return excess_s
    for phase in PHASES:
        others = np.array([series.mean(phase, steps) for other, series in phases.items() if other != rank])
        others = others[np.isfinite(others)]
        mine = phases[rank].mean(phase, steps)
        if np.isfinite(mine) and len(others):
            excess_s[phase] = mine - float(np.median(others))
    return excess_s


def _where(excess_s: Mapping[str, float], cost_s: float, first_share: float, *, in_backward: bool) -> str:
    if excess_s:
        most = max(excess_s, key=lambda phase: excess_s[phase])
        if excess_s[most] >= ABOUT * cost_s:
            return PHASES[most]
    # Where nobody measures exposed communication, the others' waiting is in their backward, which is then as long as
    # the late rank's: what is in no other phase is in that one.
    is_measured = "exposed_comm_s" in excess_s
    before = {"forward_s", "other_s"}
    if in_backward and before <= set(excess_s) and not is_measured:
        return INSIDE_BACKWARD
    if in_backward and first_share < 1 - FIRST:
        return INSIDE_BACKWARD
    return ELSEWHERE


def _by_pattern(first_share: float) -> str:
    if first_share >= FIRST:
        return "it joins the first collective of each step late; what it does before is unknown."
    return "no phase of its step is longer than the others'."


def _pattern(waits: Waits, rank: int, steps: Array) -> tuple[float, bool]:
    """Share of its delay with which `rank` comes to each step's first collective already; whether most of what it costs
    is in collectives of the backward: those of DDP's buckets, or those of the only group that waits for it."""
    first_s = bucket_s = total_s = 0.0
    groups = 0
    for each in waits.blocks:
        step = each.block.step[each.columns]
        mine = each.is_clear & (each.block.ranks[each.last] == rank) & (step >= steps[0]) & (step <= steps[-1])
        if not mine.any():
            continue
        groups += 1
        cost_s = np.where(mine, each.lost_s.sum(axis=0), 0)
        total_s += cost_s.sum()
        bucket_s += cost_s[each.block.bucket[each.columns] != UNKNOWN].sum()
        firsts = np.flatnonzero(mine & np.append(True, np.diff(step) != 0))
        first_s += np.nansum(each.wait_s[:, firsts])
    if total_s <= 0:
        return 0.0, False
    return min(float(first_s / total_s), 1.0), bool(bucket_s > total_s / 2 or groups == 1)
