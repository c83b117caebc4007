"""What a check has found so far, and the result as plain values for JSON, the table and the dashboard.

Which ranks and which links are to blame, from which pairs failed. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from rangewatch.checks.linkcheck import speed
from rangewatch.checks.linkcheck.group_result import GroupResult, ranges
from rangewatch.checks.linkcheck.speed import Measured, Slow
from rangewatch.checks.linkcheck.tasks import Device, Member, Pair

LEAST_FAILURES = 2
"""One failed pair alone cannot tell a bad rank from a bad link."""


class Blame(msgspec.Struct, frozen=True):
    """`ranks` explain the failed pairs that have one of them; `pairs` are the failures that no bad rank explains."""

    ranks: tuple[int, ...]
    pairs: tuple[Pair, ...]
    hosts: tuple[tuple[str, str], ...] = ()
    """Two hosts of which no pair of ranks works; their pairs are in `pairs`."""


def blame(
    tested: Collection[Pair], failed: Collection[Pair], votes: Mapping[int, int], hosts: Mapping[int, str]
) -> Blame:
    """The ranks that explain most failures, then what is left. `votes`: how often a failure pointed at a rank."""
    between = _bad_hosts(tested, failed, hosts)
    apart = {pair for pair in tested if _ends(pair, hosts) in between}
    ranks = _bad_ranks(set(tested) - apart, set(failed) - apart, votes)
    left = tuple(sorted(pair for pair in failed if not set(pair) & set(ranks)))
    return Blame(tuple(sorted(ranks)), left, tuple(sorted(between)))


def _bad_ranks(tested: set[Pair], failed: set[Pair], votes: Mapping[int, int]) -> list[int]:
    """Again and again the rank of which most of the pairs fail, as long as that is more than half of them."""
    bad_ranks: list[int] = []
    while True:
        tried, failures = _counts(tested), _counts(failed)
        worst = [rank for rank, count in failures.items() if count >= LEAST_FAILURES and 2 * count > tried[rank]]
        if len(failed) == len(tested):  # all fail alike: only what a failure itself points at can tell them apart
            worst = [rank for rank in worst if votes.get(rank, 0) >= LEAST_FAILURES]
        if not worst:
            return bad_ranks
        bad = max(worst, key=lambda rank: (failures[rank], votes.get(rank, 0), rank))
        bad_ranks.append(bad)
        tested, failed = _without(tested, bad), _without(failed, bad)


def _bad_hosts(tested: Collection[Pair], failed: Collection[Pair], hosts: Mapping[int, str]) -> set[tuple[str, str]]:
    """Hosts with several tested ranks each, all pairs between which fail."""
    total = Counter(_ends(pair, hosts) for pair in tested)
    bad = Counter(_ends(pair, hosts) for pair in failed)
    return {
        ends
        for ends, count in bad.items()
        if ends[0] != ends[1]
        and count == total[ends]
        and all(_ranks_of(host, tested, hosts, ends) > 1 for host in ends)
    }


def _ranks_of(host: str, tested: Iterable[Pair], hosts: Mapping[int, str], ends: tuple[str, str]) -> int:
    return len({rank for pair in tested if _ends(pair, hosts) == ends for rank in pair if hosts[rank] == host})


def _ends(pair: Pair, hosts: Mapping[int, str]) -> tuple[str, str]:
    first, second = sorted((hosts[pair[0]], hosts[pair[1]]))
    return first, second


def _counts(pairs: Iterable[Pair]) -> Counter[int]:
    return Counter(rank for pair in pairs for rank in pair)


def _without(pairs: Iterable[Pair], rank: int) -> set[Pair]:
    return {pair for pair in pairs if rank not in pair}


def struck_out(ranks: Iterable[int], good: Collection[Pair], failed: Collection[Pair], strikes: int) -> set[int]:
    """Ranks that have failed with `strikes` others, each of which works with somebody, and have worked with nobody."""
    working = {rank for pair in good for rank in pair}
    out = set()
    for rank in set(ranks) - working:
        partners = {other for pair in failed if rank in pair for other in pair if other != rank}
        if len(partners & working) >= strikes:
            out.add(rank)
    return out


def without_links(ranks: Collection[int], pairs: Iterable[Pair]) -> tuple[int, ...]:
    """The ranks less as few as it takes to have none of the bad links among them."""
    remaining, left = set(ranks), {pair for pair in pairs if set(pair) <= set(ranks)}
    while left:
        rank = max(_counts(left).items(), key=lambda item: (item[1], item[0]))[0]
        remaining.discard(rank)
        left = _without(left, rank)
    return tuple(sorted(remaining))


VERSION = 1
"""Of the result's form."""


class Findings:
    """Filled in by the coordinator, test by test."""

    def __init__(self, world_size: int, timeout_s: float) -> None:
        self.world_size, self.timeout_s = world_size, timeout_s
        self.members: dict[int, Member] = {}
        self.devices: dict[int, Device] = {}
        self.backend, self.why_backend, self.nccl_error = "", "", ""
        self.large_bytes = 0
        self.faults: dict[int, tuple[str, str]] = {}
        """Ranks that are missing or bad alone: the kind of fault, and its text."""
        self.blamed: dict[int, tuple[str, str]] = {}
        """The same of ranks that are bad together with others."""
        self.alone: dict[int, GroupResult] = {}
        self.whole: GroupResult | None = None
        self.pairs: dict[Pair, GroupResult] = {}
        self.skipped: dict[Pair, str] = {}
        self.measured: dict[Pair, Measured] = {}
        self.bad_pairs: tuple[Pair, ...] = ()
        self.bad_hosts: tuple[tuple[str, str], ...] = ()
        self.slow = Slow((), ())
        self.subsets: list[GroupResult] = []
        self.bad_groups: list[tuple[int, ...]] = []
        self.is_passing_again = False
        """All ranks together failed once, and then did not."""
        self.seconds_s = 0.0

    @property
    def hosts(self) -> dict[int, str]:
        """Host by rank."""
        return {rank: member.host for rank, member in self.members.items()}

    @property
    def bad_ranks(self) -> dict[int, tuple[str, str]]:
        """All of them, in order."""
        return dict(sorted({**self.blamed, **self.faults}.items()))

    @property
    def good_ranks(self) -> tuple[int, ...]:
        """The ranks that nothing is known against."""
        return tuple(rank for rank in range(self.world_size) if rank not in self.bad_ranks)

    def failed_pairs(self) -> list[Pair]:
        """Pairs that were tested and did not go well."""
        return [pair for pair, tested in self.pairs.items() if not tested.is_ok]

    def good_pairs(self) -> list[Pair]:
        """Pairs that went well."""
        return [pair for pair, tested in self.pairs.items() if tested.is_ok]

    def take_pair(self, tested: GroupResult) -> None:
        """A pair was tested, maybe again: the better time counts."""
        pair: Pair = (tested.ranks[0], tested.ranks[1])
        self.pairs[pair] = tested
        if tested.latency_s is not None and tested.large_s is not None:
            known = self.measured.get(pair, Measured(tested.latency_s, tested.large_s))
            self.measured[pair] = Measured(min(known[0], tested.latency_s), min(known[1], tested.large_s))

    def forget_groups(self) -> None:
        """Start again with another backend: only what ranks show alone still holds."""
        self.blamed = {}
        self.whole, self.subsets, self.bad_groups, self.is_passing_again = None, [], [], False
        self.pairs, self.skipped, self.measured = {}, {}, {}
        self.bad_pairs, self.bad_hosts, self.slow = (), (), Slow((), ())

    def fastest(self, rank: int) -> Pair | None:
        """The pair in which a rank does best."""
        mine = {pair: each for pair, each in self.measured.items() if rank in pair}
        return min(mine, key=lambda pair: mine[pair], default=None)

    def judge_failures(self) -> None:
        """Say which ranks and links the failed pairs speak against."""
        votes: Counter[int] = Counter()
        for tested in self.pairs.values():
            votes.update(tested.suspects() if not tested.is_ok else ())
        blamed = blame(self.pairs, self.failed_pairs(), votes, self.hosts)
        self.bad_pairs, self.bad_hosts = blamed.pairs, blamed.hosts
        self.blamed = {rank: self._fault(rank) for rank in blamed.ranks}

    def judge_speed(self, factor: float) -> Slow:
        """Say what is slow among what works."""
        works = {pair: each for pair, each in self.measured.items() if self.pairs[pair].is_ok}
        return speed.slow(works, self.hosts, self.backend, factor)

    def take_slow(self, slow: Slow) -> None:
        """These are slow, and stay so when they are measured alone."""
        self.slow = slow
        for rank in slow.ranks:
            times = [each for pair, each in self.measured.items() if rank in pair]
            best = f"latency {min(each.latency_s for each in times):.2g} s at best"
            self.blamed.setdefault(rank, ("slow", f"slow with every other rank: {best}"))

    def _fault(self, rank: int) -> tuple[str, str]:
        tested = {pair: each for pair, each in self.pairs.items() if rank in pair}
        failed = {pair: each for pair, each in tested.items() if not each.is_ok}
        with_whom = ranges([other for pair in failed for other in pair if other != rank])
        why = next((each for each in failed.values() if rank in each.suspects()), next(iter(failed.values())))
        state = why.outcomes[rank].state
        kind = {"stopped": "hang", "ok": "error"}.get(state, state)
        kind = "wrong" if any(each.state == "wrong" for each in why.outcomes.values()) else kind
        return kind, f"fails with {with_whom} ({len(failed)} of {len(tested)} pairs tested): {why.error()}"

    def is_ok(self) -> bool:
        """Whether nothing at all was found."""
        is_whole_ok = self.whole is None or self.whole.is_ok
        problems = (self.bad_ranks, self.bad_pairs, self.slow.pairs, self.bad_groups, self.nccl_error)
        return is_whole_ok and not any(problems)

    def result(self) -> dict[str, Any]:
        """All of it in plain values; see docs/linkcheck.md."""
        return {
            "version": VERSION,
            "ok": self.is_ok(),
            "world_size": self.world_size,
            "backend": self.backend,
            "backend_reason": self.why_backend,
            "nccl_error": self.nccl_error,
            "timeout_s": self.timeout_s,
            "duration_s": round(self.seconds_s, 2),
            "message_bytes": self.large_bytes,
            "bad_ranks": list(self.bad_ranks),
            "bad_pairs": [list(pair) for pair in self.bad_pairs],
            "slow_pairs": [list(pair) for pair in self.slow.pairs],
            "bad_groups": [list(group) for group in self.bad_groups],
            "bad_hosts": [list(hosts) for hosts in self.bad_hosts],
            "all_ranks": self._group(self.whole),
            "is_passing_again": self.is_passing_again,
            "subsets": [self._group(each) for each in self.subsets],
            "pairs": [self._pair(pair) for pair in sorted({*self.pairs, *self.skipped})],
            "ranks": [self._rank(rank) for rank in range(self.world_size)],
        }

    def _group(self, tested: GroupResult | None) -> dict[str, Any] | None:
        if tested is None:
            return None
        times = self._times(tested.latency_s, tested.large_s, len(tested.ranks))
        return {"ranks": list(tested.ranks), "ok": tested.is_ok, **times, "error": tested.error()}

    def _pair(self, pair: Pair) -> dict[str, Any]:
        tested, times = self.pairs.get(pair), self.measured.get(pair)
        is_slow = pair in self.slow.pairs or any(rank in self.slow.ranks for rank in pair)
        return {
            "a": pair[0],
            "b": pair[1],
            "ok": None if tested is None else tested.is_ok,
            "slow": is_slow and tested is not None and tested.is_ok,
            **(self._times(*times, 2) if times else self._times(None, None, 2)),
            "error": self.skipped.get(pair, "") if tested is None else tested.error(),
            "log": self.pairs[pair].log() if pair in self.bad_pairs else "",
        }

    def _times(self, latency_s: float | None, large_s: float | None, ranks: int) -> dict[str, float | None]:
        rate = speed.busbw(self.large_bytes, large_s, ranks) if large_s else None
        return {"latency_s": latency_s, "busbw_bytes_per_s": rate}

    def _rank(self, rank: int) -> dict[str, Any]:
        member, device = self.members.get(rank), self.devices.get(rank)
        kind, error = self.bad_ranks.get(rank, ("", ""))
        return {
            "rank": rank,
            "host": member.host if member else "",
            "local_rank": member.local_rank if member else None,
            "device": device.name if device else "",
            "ok": not kind,
            "fault": kind,
            "error": error,
            "log": self._log(rank) if kind else "",
        }

    def _log(self, rank: int) -> str:
        """What the rank's worker printed at the end of a pair that failed, or alone."""
        tested = [each for pair, each in self.pairs.items() if rank in pair] + (
            [self.alone[rank]] if rank in self.alone else []
        )
        return next((log for each in tested if (log := each.outcomes[rank].log)), "")
