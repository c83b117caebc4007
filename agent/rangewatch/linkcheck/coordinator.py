"""The plan of a check: each rank alone, all together, all pairs, then smaller groups. Runs no collective itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rangewatch.linkcheck import verdict
from rangewatch.linkcheck.findings import Findings
from rangewatch.linkcheck.group_result import GroupResult
from rangewatch.linkcheck.rounds import ranges, rounds, without_parts
from rangewatch.linkcheck.runner import Runner
from rangewatch.linkcheck.speed import Slow
from rangewatch.linkcheck.store import Store
from rangewatch.linkcheck.tasks import GLOO, NCCL, Pair

LARGE_BYTES = {NCCL: 64 << 20, GLOO: 4 << 20}
"""What a link needs to show its bandwidth: nccl-tests' curves are flat from 64 MiB; gloo's CPU copies from 1 MiB."""
STRIKES = 3
"""A rank that failed with so many good ones, and worked with none, is not waited for any more."""
HOPELESS_ROUNDS = 3
"""When no pair at all has worked in so many rounds, the others will not either."""
SUBSETS = 40
"""Tests of smaller groups at most; 8 ranks need 14."""
AGAIN = 8
"""Slow pairs that are measured again at most, each with nothing else running."""

Tell = Callable[[str], None]


class Plan(NamedTuple):
    """What was asked for. `backend` "": NCCL where every rank can; `large_bytes`, `rounds` 0: the usual, all."""

    world_size: int
    backend: str
    timeout_s: float
    join_s: float
    large_bytes: int
    rounds: int
    slow_factor: float


def check(store: Store, plan: Plan, tell: Tell) -> dict[str, Any]:
    """Do it all; the result. Raises `RuntimeError` when the store is gone."""
    found = Findings(plan.world_size, plan.timeout_s)
    begin_s = time.monotonic()
    runner = Runner(store, plan.timeout_s)
    try:
        _join(store, plan, found, tell)
        _Check(runner, plan, found, tell).run()
    finally:
        runner.end()
    found.seconds_s = time.monotonic() - begin_s
    return found.result()


def _join(store: Store, plan: Plan, found: Findings, tell: Tell) -> None:
    """Wait for the ranks; those that do not come are bad."""
    begin_s = told_s = time.monotonic()
    while missing := [rank for rank in range(plan.world_size) if rank not in found.members]:
        store.beat()
        found.members |= {rank: member for rank in missing if (member := store.member(rank)) is not None}
        now_s = time.monotonic()
        if now_s - begin_s > plan.join_s:
            break
        if now_s - told_s > 5:
            told_s = now_s
            tell(f"waiting for {ranges(missing)}")
        time.sleep(0.02)
    for rank in range(plan.world_size):
        if rank not in found.members:
            found.faults[rank] = ("missing", f"has not come within {plan.join_s:g} s")
    tell(f"{len(found.members)} of {plan.world_size} ranks, on {len(set(found.hosts.values()))} host(s)")


class _Check:
    def __init__(self, runner: Runner, plan: Plan, found: Findings, tell: Tell) -> None:
        self._runner, self._plan, self._found, self._tell = runner, plan, found, tell

    def run(self) -> None:
        self._found.large_bytes = self._plan.large_bytes or LARGE_BYTES[GLOO]
        self._alone(self._plan.backend)
        self._choose_backend()
        self._together()
        found = self._found
        if found.backend == NCCL and found.whole is not None and not (found.whole.is_ok or found.good_pairs()):
            self._fall_back(found.whole.error())

    def _alone(self, backend: str) -> None:
        """Each rank by itself: opens its device, and runs the operations in a group of one."""
        found, ranks = self._found, tuple(self._found.members)
        found.alone = tested = dict(zip(ranks, self._test([(rank,) for rank in ranks], backend), strict=True))
        found.devices |= {rank: device for rank in ranks if (device := tested[rank].outcomes[rank].device) is not None}
        bad = {rank: each for rank, each in tested.items() if not each.is_ok}
        self._tell(f"alone: {_counted(len(tested) - len(bad), len(bad))}")
        wants_nccl = backend == NCCL or any(device.backend == NCCL for device in found.devices.values())
        if bad and len(bad) == len(tested) and backend != GLOO and wants_nccl:
            self._give_up_nccl(next(iter(bad.values())).error())
            self._alone(GLOO)
            return
        for rank, each in bad.items():
            found.faults[rank] = (each.outcomes[rank].state, f"fails alone: {each.error()}")

    def _choose_backend(self) -> None:
        found = self._found
        if found.backend:
            return
        found.backend = self._plan.backend
        if not found.backend:
            self._accuse_odd_devices()
            found.why_backend = _why_not_nccl(found)
            found.backend = GLOO if found.why_backend else NCCL
        self._tell(f"backend: {found.backend}" + (f" ({found.why_backend})" if found.why_backend else ""))

    def _accuse_odd_devices(self) -> None:
        """Where some have a GPU, one that sees none is what is wrong; it must not pass for a reason to check gloo."""
        found = self._found
        odd = [rank for rank in found.good_ranks if found.devices[rank].backend != NCCL]
        if len(odd) < len(found.good_ranks):
            for rank in odd:
                found.faults[rank] = ("error", f"{found.devices[rank].why}, unlike other ranks")

    def _give_up_nccl(self, error: str) -> None:
        self._tell(f"NCCL does not work ({error}); going on with gloo")
        self._found.nccl_error, self._found.backend, self._found.why_backend = error, GLOO, "NCCL does not work"

    def _fall_back(self, error: str) -> None:
        """NCCL works between no two ranks: see whether the ranks reach one another at all."""
        self._found.forget_groups()
        self._give_up_nccl(error)
        self._together()

    def _together(self) -> None:
        """All ranks that are good alone, then pairs, then what these leave open."""
        found = self._found
        found.large_bytes = self._plan.large_bytes or LARGE_BYTES[found.backend]
        if len(ranks := found.good_ranks) < 2:
            return
        found.whole = self._group(ranks)
        self._tell(f"all {len(ranks)} together: {found.whole.error() or 'ok'}")
        self._pairs(ranks)
        slow = self._slow()
        found.judge_failures()
        found.take_slow(slow)
        if not found.whole.is_ok:
            self._subsets()

    def _pairs(self, ranks: Sequence[int]) -> None:
        found, all_rounds = self._found, rounds(ranks)
        wanted = all_rounds[: self._plan.rounds or None]
        for number, pairs in enumerate(wanted, 1):
            left = self._left_of(pairs, number)
            for tested in self._test(left, found.backend) if left else []:
                found.take_pair(tested)
            bad = sum(not found.pairs[pair].is_ok for pair in left)
            self._tell(
                f"pairs, round {number} of {len(wanted)}: {_counted(len(left) - bad, bad, len(pairs) - len(left))}"
            )

    def _left_of(self, pairs: Sequence[Pair], number: int) -> list[Pair]:
        """The pairs of this round that are worth a test; the others are noted as skipped."""
        found = self._found
        out = verdict.struck_out(found.good_ranks, found.good_pairs(), found.failed_pairs(), STRIKES)
        is_hopeless = number > HOPELESS_ROUNDS and not found.good_pairs()
        for pair in pairs:
            if gone := set(found.faults) & set(pair):
                found.skipped[pair] = f"not tested: rank {min(gone)} does not answer"
            elif bad := out & set(pair):
                found.skipped[pair] = f"not tested: rank {min(bad)} had failed with {STRIKES} others that work"
            elif is_hopeless:
                found.skipped[pair] = "not tested: no pair had worked"
        return [pair for pair in pairs if pair not in found.skipped]

    def _slow(self) -> Slow:
        """What is slow, and still is when it is measured again with nothing else running."""
        found, factor = self._found, self._plan.slow_factor
        slow = found.judge_speed(factor)
        best = [found.fastest(rank) for rank in slow.ranks]
        again = list(dict.fromkeys([pair for pair in best if pair is not None] + list(slow.pairs)))[:AGAIN]
        for pair in again:
            found.take_pair(self._group(pair))
        if again:
            self._tell(f"measured again: {len(again)} pairs that looked slow")
        return found.judge_speed(factor)

    def _subsets(self) -> None:
        """All failed together: find out who works together, and where no rank or link is to blame, who does not."""
        found = self._found
        ranks = verdict.without_links(found.good_ranks, found.bad_pairs)
        if len(ranks) < 3:
            return
        tested = self._subset(ranks)
        if tested.is_ok:
            found.is_passing_again = found.whole is not None and ranks == found.whole.ranks
            return
        found.bad_groups.append(self._smallest(ranks))

    def _smallest(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """A group that fails, made smaller as long as that fails too: by halves, quarters, ... and single ranks."""
        tests = 0
        size = len(ranks) // 2
        while size and tests < SUBSETS:
            for rest in without_parts(ranks, size):
                tests += 1
                if not self._subset(rest).is_ok:
                    ranks = rest
                    break
            else:
                size //= 2
            size = min(size, len(ranks) - 2)  # pairs have been tested
        return ranks

    def _subset(self, ranks: tuple[int, ...]) -> GroupResult:
        tested = self._group(ranks)
        self._found.subsets.append(tested)
        self._tell(f"{ranges(ranks)} together: {tested.error() or 'ok'}")
        return tested

    def _group(self, ranks: tuple[int, ...]) -> GroupResult:
        return self._test([ranks], self._found.backend)[0]

    def _test(self, groups: Sequence[tuple[int, ...]], backend: str) -> list[GroupResult]:
        tested = self._runner.test(groups, backend, self._found.large_bytes)
        for rank in [rank for each in tested for rank, outcome in each.outcomes.items() if outcome.state == "missing"]:
            self._found.faults[rank] = ("missing", "its process has come, and does not answer any more")
            self._tell(f"rank {rank} does not answer any more")
        return tested


def _why_not_nccl(found: Findings) -> str:
    """The first reason against NCCL; "" for none."""
    seen: dict[tuple[str, str], int] = {}
    for rank in found.good_ranks:
        device, host = found.devices[rank], found.hosts[rank]
        if device.backend != NCCL:  # then all have none
            return f"{device.why} on rank {rank}"
        if device.identity and (other := seen.setdefault((host, device.identity), rank)) != rank:
            return f"ranks {other} and {rank} have the same GPU, which NCCL refuses"
    return ""


def _counted(ok: int, failed: int, skipped: int = 0) -> str:
    parts = [f"{ok} ok"] + ([f"{failed} failed"] if failed else []) + ([f"{skipped} not tested"] if skipped else [])
    return ", ".join(parts)
