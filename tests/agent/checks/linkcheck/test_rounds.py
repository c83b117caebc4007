from __future__ import annotations

import pytest

from rangewatch.checks.linkcheck.group_result import ranges, rounds, without_parts


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 33])
def test_every_pair_once_in_the_fewest_rounds_of_disjoint_pairs(count: int) -> None:
    found = rounds(range(count))
    assert len(found) == count - 1 + count % 2
    pairs = [pair for each in found for pair in each]
    assert sorted(pairs) == [(a, b) for a in range(count) for b in range(a + 1, count)]
    for each in found:
        ranks = [rank for pair in each for rank in pair]
        assert len(set(ranks)) == len(ranks)


def test_ranks_need_not_be_consecutive() -> None:
    assert sorted(pair for each in rounds([1, 4, 9]) for pair in each) == [(1, 4), (1, 9), (4, 9)]


def test_parts_are_left_out_in_turn_and_pairs_are_not_tested_again() -> None:
    assert without_parts((0, 1, 2, 3, 4, 5), 3) == [(3, 4, 5), (0, 1, 2)]
    assert without_parts((0, 1, 2, 3), 1) == [(1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2)]
    assert without_parts((0, 1, 2), 1) == []


def test_ranges_read_well() -> None:
    assert ranges([3]) == "rank 3"
    assert ranges([9, 0, 1, 2]) == "ranks 0-2, 9"
