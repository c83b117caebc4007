"""How the outcomes of a group are read: who is suspect, and in which words."""

from __future__ import annotations

from rangewatch.checks.linkcheck.group_result import GroupResult
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
