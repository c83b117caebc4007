"""Which ranks and links are blamed, over planted failures of every pair."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import combinations

import pytest

from rangewatch.checks.linkcheck.findings import Blame, blame, struck_out, without_links


def judged(
    count: int,
    bad: Collection[int] = (),
    links: Collection[tuple[int, int]] = (),
    votes: Mapping[int, int] | None = None,
    hosts: int = 1,
) -> Blame:
    """All pairs of `count` ranks; those with a bad rank, and bad links, fail. Hosts have as many ranks each."""
    tested = list(combinations(range(count), 2))
    failed = [pair for pair in tested if set(pair) & set(bad) or pair in links]
    return blame(tested, failed, votes or {}, {rank: f"h{rank * hosts // count}" for rank in range(count)})


@pytest.mark.parametrize("rank", range(8))
def test_one_bad_rank_explains_all_its_pairs(rank: int) -> None:
    assert judged(8, bad=[rank]) == Blame((rank,), ())


@pytest.mark.parametrize("link", list(combinations(range(4), 2)))
def test_one_bad_link_accuses_neither_of_its_ranks(link: tuple[int, int]) -> None:
    assert judged(4, links=[link]) == Blame((), (link,))


def test_several_bad_ranks_and_a_link_apart_from_them() -> None:
    assert judged(8, bad=[2, 6], links=[(0, 1)]) == Blame((2, 6), ((0, 1),))


def test_half_of_a_ranks_links_are_not_enough_to_accuse_it() -> None:
    assert judged(5, links=[(0, 1), (0, 2)]) == Blame((), ((0, 1), (0, 2)))
    assert judged(4, links=[(0, 1), (0, 2)]) == Blame((0,), ())


def test_of_two_ranks_nobody_can_say_which() -> None:
    assert judged(2, links=[(0, 1)]) == Blame((), ((0, 1),))


def test_where_every_pair_fails_only_evidence_accuses() -> None:
    everything = list(combinations(range(3), 2))
    assert judged(3, links=everything) == Blame((), tuple(everything))
    assert judged(3, bad=[1, 2], votes={1: 2, 2: 2}).ranks[-1] in (1, 2)


def test_a_dead_network_between_hosts_accuses_no_rank() -> None:
    between = [(a, b) for a in range(4) for b in range(4, 8)]
    found = judged(8, links=between, hosts=2)
    assert (found.ranks, found.hosts) == ((), (("h0", "h1"),))
    assert list(found.pairs) == between


def test_a_rank_whose_network_card_is_dead_is_accused_and_not_its_host() -> None:
    assert judged(8, links=[(2, other) for other in range(4, 8)], hosts=2) == Blame((2,), ())


def test_a_rank_is_struck_out_only_by_ranks_that_work() -> None:
    failed = [(0, 7), (1, 7), (2, 7)]
    assert struck_out(range(8), good=[(0, 1), (1, 2)], failed=failed, strikes=3) == {7}
    assert struck_out(range(8), good=[(0, 1)], failed=failed, strikes=3) == set()
    assert struck_out(range(8), good=[(0, 1), (1, 2), (6, 7)], failed=failed, strikes=3) == set()


def test_the_fewest_ranks_are_left_out_for_bad_links() -> None:
    assert without_links(range(5), [(0, 1), (0, 2), (0, 3)]) == (1, 2, 3, 4)
    assert without_links(range(4), []) == (0, 1, 2, 3)
    assert without_links([0, 2, 3], [(0, 1)]) == (0, 2, 3)
