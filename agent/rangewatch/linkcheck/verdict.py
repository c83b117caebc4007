"""Which ranks and which links are to blame, from which pairs failed. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import msgspec

from rangewatch.linkcheck.tasks import Pair

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
    found: list[int] = []
    while True:
        tried, failures = _counts(tested), _counts(failed)
        worst = [rank for rank, count in failures.items() if count >= LEAST_FAILURES and 2 * count > tried[rank]]
        if len(failed) == len(tested):  # all fail alike: only what a failure itself points at can tell them apart
            worst = [rank for rank in worst if votes.get(rank, 0) >= LEAST_FAILURES]
        if not worst:
            return found
        bad = max(worst, key=lambda rank: (failures[rank], votes.get(rank, 0), rank))
        found.append(bad)
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
    found = set()
    for rank in set(ranks) - working:
        partners = {other for pair in failed if rank in pair for other in pair if other != rank}
        if len(partners & working) >= strikes:
            found.add(rank)
    return found


def without_links(ranks: Collection[int], pairs: Iterable[Pair]) -> tuple[int, ...]:
    """The ranks less as few as it takes to have none of the bad links among them."""
    kept, left = set(ranks), {pair for pair in pairs if set(pair) <= set(ranks)}
    while left:
        rank = max(_counts(left).items(), key=lambda item: (item[1], item[0]))[0]
        kept.discard(rank)
        left = _without(left, rank)
    return tuple(sorted(kept))
