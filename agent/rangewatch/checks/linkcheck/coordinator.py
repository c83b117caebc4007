"""The plan of a check: each rank alone, all together, all pairs, then smaller groups. Runs no collective itself.

The coordinator's side of a test: gives it to the supervisors, and waits for what became of it on each rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from rangewatch.checks.linkcheck.findings import Findings, struck_out, without_links
from rangewatch.checks.linkcheck.group_result import GroupResult, ranges, rounds, without_parts
from rangewatch.checks.linkcheck.speed import Slow
from rangewatch.checks.linkcheck.store import Store
from rangewatch.checks.linkcheck.supervisor import GRACE_S, TEST_TIMEOUTS
from rangewatch.checks.linkcheck.tasks import GLOO, NCCL, Outcome, Pair, Task

POLL_S = 0.01
ANSWER_S = 5.0
"""A supervisor that lives answers this soon after its group was stopped: it looks ten times a second."""
LISTEN_S = 1.0
SILENT_S = 10.0
"""A supervisor without a sign of life for so long is gone, with its host maybe. It gives one a second; a worker that
cannot be killed keeps it busy for some more."""
PATIENCE, PATIENCE_ALONE, PATIENCE_LEAST_S = 10.0, 3.0, 5.0
"""A group hangs when it takes this many times as long as the slowest that went well (of its size, or for its
size), and as the slowest rank alone (a GPU may take seconds to wake), and at least so many seconds."""


class Runner:
    """Numbers tests and runs them one after the other."""

    def __init__(self, store: Store, timeout_s: float) -> None:
        self._store, self._timeout_s = store, timeout_s
        self._number = 0
        self._slowest_s: dict[int, float] = {}

    def test(self, groups: Sequence[tuple[int, ...]], backend: str, large_bytes: int) -> list[GroupResult]:
        """Test groups that share no rank, all at once; what became of each, in their order."""
        task = Task(self._number, tuple(groups), backend, self._timeout_s, large_bytes)
        self._number += 1
        self._store.put_task(task)
        return _Gathering(self._store, task, self._slowest_s).until_done()

    def end(self) -> None:
        """There are no more tests."""
        self._store.put_task(Task(self._number, is_last=True))


class _Gathering:
    """Waits for the outcomes of one task, and no longer than is sensible."""

    def __init__(self, store: Store, task: Task, slowest_s: dict[int, float]) -> None:
        self._store, self._task, self._slowest_s = store, task, slowest_s
        self._begin_s = time.monotonic()
        self._came: list[dict[int, Outcome]] = [{} for _ in task.groups]
        self._stopped_s: list[float | None] = [None] * len(task.groups)
        self._signs: dict[int, tuple[int, float]] = {}
        self._listen_s = self._begin_s + LISTEN_S

    def until_done(self) -> list[GroupResult]:
        """All groups, complete: a rank that never answers is `missing`."""
        count = -1
        while open_groups := [index for index in range(len(self._came)) if self._pending(index)]:
            self._store.beat()
            if (now := self._store.outcome_count(self._task.number)) != count:
                count = now
                self._take(open_groups)
            else:
                time.sleep(POLL_S)
            self._listen(open_groups)
            for index in open_groups:
                self._press(index)
        return [GroupResult(came) for came in self._came]

    def _pending(self, index: int) -> list[int]:
        return [rank for rank in self._task.groups[index] if rank not in self._came[index]]

    def _take(self, indices: Collection[int]) -> None:
        for index in indices:
            for rank in self._pending(index):
                if (outcome := self._store.outcome(self._task.number, rank)) is not None:
                    self._came[index][rank] = outcome
            if not self._pending(index):
                self._count_duration(index)

    def _count_duration(self, index: int) -> None:
        if all(each.state == "ok" for each in self._came[index].values()):
            size, took_s = len(self._came[index]), time.monotonic() - self._begin_s
            self._slowest_s[size] = max(self._slowest_s.get(size, 0.0), took_s)

    def _listen(self, indices: Collection[int]) -> None:
        """Give up on ranks whose supervisors are silent: killed, stopped, or on a host that is gone."""
        now_s = time.monotonic()
        if now_s < self._listen_s:
            return
        self._listen_s = now_s + LISTEN_S
        for index in indices:
            for rank in self._pending(index):
                signs = self._store.signs(rank)
                known, since_s = self._signs.get(rank, (-1, now_s))
                if signs != known:
                    self._signs[rank] = (signs, now_s)
                elif now_s - since_s > SILENT_S:
                    self._came[index][rank] = Outcome(rank, "missing")

    def _press(self, index: int) -> None:
        """Stop a group that takes far longer than others did, and give up on ranks that do not even answer then."""
        pending, now_s = self._pending(index), time.monotonic()
        has_failed = any(each.state != "ok" for each in self._came[index].values())
        if (
            pending
            and self._stopped_s[index] is None
            and (has_failed or now_s - self._begin_s > self._patience_s(index))
        ):
            self._store.stop(self._task.number, index)
            self._stopped_s[index] = now_s
        stopped_s = self._stopped_s[index]
        if stopped_s is not None and now_s - stopped_s > ANSWER_S + GRACE_S:
            self._came[index] |= {rank: Outcome(rank, "missing") for rank in pending}

    def _patience_s(self, index: int) -> float:
        bound_s = TEST_TIMEOUTS * self._task.timeout_s + GRACE_S
        size = len(self._task.groups[index])
        others = [took_s * max(size / other, 1.0) for other, took_s in self._slowest_s.items() if other > 1]
        if size == 1 or not others:
            return bound_s
        usual_s = self._slowest_s.get(size, max(others))
        alone_s = PATIENCE_ALONE * self._slowest_s.get(1, 0.0)
        return min(bound_s, max(PATIENCE * usual_s, alone_s, PATIENCE_LEAST_S))


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

Emit = Callable[[str], None]


class Plan(NamedTuple):
    """What was asked for. `backend` "": NCCL where every rank can; `large_bytes`, `rounds` 0: the usual, all."""

    world_size: int
    backend: str
    timeout_s: float
    join_s: float
    large_bytes: int
    rounds: int
    slow_factor: float


def check(store: Store, plan: Plan, emit: Emit) -> dict[str, Any]:
    """Do it all; the result. Raises `RuntimeError` when the store is gone."""
    findings = Findings(plan.world_size, plan.timeout_s)
    begin_s = time.monotonic()
    runner = Runner(store, plan.timeout_s)
    try:
        _join(store, plan, findings, emit)
        _Check(runner, plan, findings, emit).run()
    finally:
        runner.end()
    findings.seconds_s = time.monotonic() - begin_s
    return findings.result()


def _join(store: Store, plan: Plan, findings: Findings, emit: Emit) -> None:
    """Wait for the ranks; those that do not come are bad."""
    begin_s = reported_s = time.monotonic()
    while missing := [rank for rank in range(plan.world_size) if rank not in findings.members]:
        store.beat()
        findings.members |= {rank: member for rank in missing if (member := store.member(rank)) is not None}
        now_s = time.monotonic()
        if now_s - begin_s > plan.join_s:
            break
        if now_s - reported_s > 5:
            reported_s = now_s
            emit(f"waiting for {ranges(missing)}")
        time.sleep(0.02)
    for rank in range(plan.world_size):
        if rank not in findings.members:
            findings.faults[rank] = ("missing", f"has not come within {plan.join_s:g} s")
    emit(f"{len(findings.members)} of {plan.world_size} ranks, on {len(set(findings.hosts.values()))} host(s)")


class _Check:
    def __init__(self, runner: Runner, plan: Plan, findings: Findings, emit: Emit) -> None:
        self._runner, self._plan, self._findings, self._emit = runner, plan, findings, emit

    def run(self) -> None:
        self._findings.large_bytes = self._plan.large_bytes or LARGE_BYTES[GLOO]
        self._alone(self._plan.backend)
        self._choose_backend()
        self._together()
        findings = self._findings
        if (
            findings.backend == NCCL
            and findings.whole is not None
            and not (findings.whole.is_ok or findings.good_pairs())
        ):
            self._fall_back(findings.whole.error())

    def _alone(self, backend: str) -> None:
        """Each rank by itself: opens its device, and runs the operations in a group of one."""
        findings, ranks = self._findings, tuple(self._findings.members)
        findings.alone = tested = dict(zip(ranks, self._test([(rank,) for rank in ranks], backend), strict=True))
        findings.devices |= {
            rank: device for rank in ranks if (device := tested[rank].outcomes[rank].device) is not None
        }
        bad = {rank: each for rank, each in tested.items() if not each.is_ok}
        self._emit(f"alone: {_counted(len(tested) - len(bad), len(bad))}")
        wants_nccl = backend == NCCL or any(device.backend == NCCL for device in findings.devices.values())
        if bad and len(bad) == len(tested) and backend != GLOO and wants_nccl:
            self._give_up_nccl(next(iter(bad.values())).error())
            self._alone(GLOO)
            return
        for rank, each in bad.items():
            findings.faults[rank] = (each.outcomes[rank].state, f"fails alone: {each.error()}")

    def _choose_backend(self) -> None:
        findings = self._findings
        if findings.backend:
            return
        findings.backend = self._plan.backend
        if not findings.backend:
            self._accuse_odd_devices()
            findings.why_backend = _why_not_nccl(findings)
            findings.backend = GLOO if findings.why_backend else NCCL
        self._emit(f"backend: {findings.backend}" + (f" ({findings.why_backend})" if findings.why_backend else ""))

    def _accuse_odd_devices(self) -> None:
        """Where some have a GPU, one that sees none is what is wrong; it must not pass for a reason to check gloo."""
        findings = self._findings
        odd = [rank for rank in findings.good_ranks if findings.devices[rank].backend != NCCL]
        if len(odd) < len(findings.good_ranks):
            for rank in odd:
                findings.faults[rank] = ("error", f"{findings.devices[rank].why}, unlike other ranks")

    def _give_up_nccl(self, error: str) -> None:
        self._emit(f"NCCL does not work ({error}); going on with gloo")
        self._findings.nccl_error, self._findings.backend, self._findings.why_backend = (
            error,
            GLOO,
            "NCCL does not work",
        )

    def _fall_back(self, error: str) -> None:
        """NCCL works between no two ranks: see whether the ranks reach one another at all."""
        self._findings.forget_groups()
        self._give_up_nccl(error)
        self._together()

    def _together(self) -> None:
        """All ranks that are good alone, then pairs, then what these leave open."""
        findings = self._findings
        findings.large_bytes = self._plan.large_bytes or LARGE_BYTES[findings.backend]
        if len(ranks := findings.good_ranks) < 2:
            return
        findings.whole = self._group(ranks)
        self._emit(f"all {len(ranks)} together: {findings.whole.error() or 'ok'}")
        self._pairs(ranks)
        slow = self._slow()
        findings.judge_failures()
        findings.take_slow(slow)
        if not findings.whole.is_ok:
            self._subsets()

    def _pairs(self, ranks: Sequence[int]) -> None:
        findings, all_rounds = self._findings, rounds(ranks)
        wanted = all_rounds[: self._plan.rounds or None]
        for number, pairs in enumerate(wanted, 1):
            left = self._left_of(pairs, number)
            for tested in self._test(left, findings.backend) if left else []:
                findings.take_pair(tested)
            bad = sum(not findings.pairs[pair].is_ok for pair in left)
            self._emit(
                f"pairs, round {number} of {len(wanted)}: {_counted(len(left) - bad, bad, len(pairs) - len(left))}"
            )

    def _left_of(self, pairs: Sequence[Pair], number: int) -> list[Pair]:
        """The pairs of this round that are worth a test; the others are noted as skipped."""
        findings = self._findings
        out = struck_out(findings.good_ranks, findings.good_pairs(), findings.failed_pairs(), STRIKES)
        is_hopeless = number > HOPELESS_ROUNDS and not findings.good_pairs()
        for pair in pairs:
            if gone := set(findings.faults) & set(pair):
                findings.skipped[pair] = f"not tested: rank {min(gone)} does not answer"
            elif bad := out & set(pair):
                findings.skipped[pair] = f"not tested: rank {min(bad)} had failed with {STRIKES} others that work"
            elif is_hopeless:
                findings.skipped[pair] = "not tested: no pair had worked"
        return [pair for pair in pairs if pair not in findings.skipped]

    def _slow(self) -> Slow:
        """What is slow, and still is when it is measured again with nothing else running."""
        findings, factor = self._findings, self._plan.slow_factor
        slow = findings.judge_speed(factor)
        best = [findings.fastest(rank) for rank in slow.ranks]
        again = list(dict.fromkeys([pair for pair in best if pair is not None] + list(slow.pairs)))[:AGAIN]
        for pair in again:
            findings.take_pair(self._group(pair))
        if again:
            self._emit(f"measured again: {len(again)} pairs that looked slow")
        return findings.judge_speed(factor)

    def _subsets(self) -> None:
        """All failed together: find out who works together, and where no rank or link is to blame, who does not."""
        findings = self._findings
        ranks = without_links(findings.good_ranks, findings.bad_pairs)
        if len(ranks) < 3:
            return
        tested = self._subset(ranks)
        if tested.is_ok:
            findings.is_passing_again = findings.whole is not None and ranks == findings.whole.ranks
            return
        findings.bad_groups.append(self._smallest(ranks))

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
        self._findings.subsets.append(tested)
        self._emit(f"{ranges(ranks)} together: {tested.error() or 'ok'}")
        return tested

    def _group(self, ranks: tuple[int, ...]) -> GroupResult:
        return self._test([ranks], self._findings.backend)[0]

    def _test(self, groups: Sequence[tuple[int, ...]], backend: str) -> list[GroupResult]:
        tested = self._runner.test(groups, backend, self._findings.large_bytes)
        for rank in [rank for each in tested for rank, outcome in each.outcomes.items() if outcome.state == "missing"]:
            self._findings.faults[rank] = ("missing", "its process has come, and does not answer any more")
            self._emit(f"rank {rank} does not answer any more")
        return tested


def _why_not_nccl(findings: Findings) -> str:
    """The first reason against NCCL; "" for none."""
    seen: dict[tuple[str, str], int] = {}
    for rank in findings.good_ranks:
        device, host = findings.devices[rank], findings.hosts[rank]
        if device.backend != NCCL:  # then all have none
            return f"{device.why} on rank {rank}"
        if device.identity and (other := seen.setdefault((host, device.identity), rank)) != rank:
            return f"ranks {other} and {rank} have the same GPU, which NCCL refuses"
    return ""


def _counted(ok: int, failed: int, skipped: int = 0) -> str:
    parts = [f"{ok} ok"] + ([f"{failed} failed"] if failed else []) + ([f"{skipped} not tested"] if skipped else [])
    return ", ".join(parts)
