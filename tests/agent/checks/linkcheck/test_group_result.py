"""Rounds of pairs, and how the outcomes of a group are read: who is suspect, and the text that says so."""

from __future__ import annotations

import pytest

from rangewatch.checks.linkcheck.group_result import GroupResult, ranges, rounds, without_parts
from rangewatch.checks.linkcheck.tasks import Outcome


def group(*outcomes: Outcome) -> GroupResult:
    return GroupResult({each.rank: each for each in outcomes})


def ok(rank: int) -> Outcome:
    return Outcome(rank, "ok", "end", latency_s=rank * 1e-6, large_s=1e-3)


def test_a_group_is_as_fast_as_its_slowest_rank() -> None:
    found = group(ok(1), ok(2))
    assert found.is_ok and found.error() == "" and found.suspects() == ()
    assert (found.latency_s, found.large_s) == (2e-6, 1e-3)


def test_who_never_came_is_named_and_not_who_waited() -> None:
    found = group(*(Outcome(rank, "hang", "all_reduce") for rank in range(7)), Outcome(7, "hang", "init"))
    assert found.suspects() == (7,)
    assert found.error() == "rank 7 hung in init and never came to all_reduce, where ranks 0-6 waited"


def test_where_all_hang_in_one_operation_nobody_is_named() -> None:
    found = group(Outcome(0, "hang", "all_reduce"), Outcome(1, "stopped", "all_reduce"))
    assert found.suspects() == () and found.error() == "ranks 0-1 all hang in all_reduce"


def test_the_dead_come_before_those_who_noticed() -> None:
    noticed = Outcome(0, "error", "all_reduce", "RuntimeError: connection closed by peer")
    found = group(noticed, Outcome(1, "died", "init", "by SIGSEGV"))
    assert found.suspects() == (1,) and found.error() == "rank 1 died by SIGSEGV in init"


def test_a_watchdog_that_aborts_since_its_peer_died_is_no_suspect() -> None:
    aborted = Outcome(0, "died", "all_reduce", "by SIGABRT")
    found = group(aborted, Outcome(1, "died", "all_reduce", "by SIGSEGV"))
    assert found.suspects() == (1,) and found.error() == "rank 1 died by SIGSEGV in all_reduce"
    assert group(aborted, Outcome(1, "stopped", "all_reduce")).suspects() == (0,)


def test_whose_values_are_wrong_is_suspect_and_not_who_got_them() -> None:
    got = Outcome(0, "wrong", "end", "rank 0 got wrong values from rank 1: element 3 ...", sources=(1,))
    found = group(got, Outcome(1, "wrong", "end", "rank 1 got a wrong int64 sum: element 3 ..."))
    assert found.suspects() == (1,) and "from rank 1" in found.error()


def test_an_error_that_kept_a_rank_back_is_told() -> None:
    found = group(Outcome(0, "stopped", "values"), Outcome(1, "error", "allocate", "OutOfMemoryError: 64 MiB"))
    assert found.suspects() == (1,) and found.error() == "rank 1 in allocate: OutOfMemoryError: 64 MiB"


def test_a_silent_supervisor_is_missing() -> None:
    found = group(Outcome(0, "stopped", "all_reduce"), Outcome(1, "missing"))
    assert found.suspects() == (1,) and found.error() == "the process of rank 1 does not answer"


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
