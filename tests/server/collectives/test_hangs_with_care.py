"""A hang is told of those who are to blame: not of who is about to tell, was left behind, or cannot know."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rangewatch_server.collectives.hang_evidence import RankEvidence, recent_calls
from rangewatch_server.collectives.hang_verdict import HangFinding, hang
from rangewatch_server.collectives.records import group_key
from tests.server.collectives.test_hangs import NOW, SECOND, WORLD, call, facts, found, reported, two_groups, waiting
from tests.server.collectives.traces import chunk, row


def without_ends(data: dict[str, Any]) -> dict[str, Any]:
    """As where nobody tells the agent of ends: gloo before torch 2.8, NCCL without timing."""
    for group in data["groups"]:
        group["completed"] = None
    return data


def test_who_is_missing_is_named_where_nobody_tells_of_ends() -> None:
    """Each rank tells the last that it called, which on rank 2 is over."""
    ranks = [facts(rank, without_ends(reported((WORLD, 16, [call(17)])))) for rank in (0, 1, 3)]
    finding = found([*ranks, facts(2, without_ends(reported((WORLD, 15, [call(16)]))))])
    assert (finding.cause, finding.culprits, finding.sequence) == ("absent", (2,), 17)
    assert "still in" not in finding.sentence
    assert {each.rank: each.completed for each in finding.ranks} == dict.fromkeys(range(4))


def test_an_evaluation_is_not_the_communication_where_nobody_tells_of_ends() -> None:
    finding = found([facts(rank, without_ends(reported((WORLD, 16, [call(17)])))) for rank in range(4)])
    assert (finding.cause, finding.culprits) == ("busy", ())
    assert "(collective 17) of group data parallel" in finding.sentence and "an evaluation" in finding.sentence


def test_a_rank_that_is_stuck_in_what_is_over_for_the_others() -> None:
    finding = found([*waiting(0, 1, 3), facts(2, reported((WORLD, 15, [call(16)])))])
    assert (finding.cause, finding.culprits, finding.sequence) == ("absent", (2,), 17)
    assert "Rank 2 is still in all_reduce of 4 MiB float32 (collective 16)" in finding.sentence


def test_a_dead_link_of_a_small_group_is_not_another_order() -> None:
    """Ranks 2 and 3 are both in their collective, which does not end; 0 and 1 wait for them in other groups."""
    tensor, data = two_groups()
    ranks = [
        facts(0, reported((tensor[0], 40, []), (data[0], 4, [call(5)]))),
        facts(1, reported((tensor[0], 40, []), (data[1], 4, [call(5)]))),
        facts(2, reported((tensor[1], 40, [call(41)]), (data[0], 4, []))),
        facts(3, reported((tensor[1], 40, [call(41)]), (data[1], 4, []))),
    ]
    finding = found(ranks)
    assert (finding.cause, finding.culprits) == ("communication", ())
    assert finding.group is not None and finding.group.name == "tp2"


def test_calls_of_the_process_before_are_not_this_ones() -> None:
    """It had called 116 before it was restarted, and has called 16 since."""
    rows = [row(n, group=WORLD) for n in range(1, 117)]
    old, new = chunk(2, rows, 0), chunk(2, rows[:16], 1)
    assert max(each.sequence for each in recent_calls([old, new])[group_key(WORLD)]) == 16
    nothing_yet = chunk(2, [], 1)
    assert recent_calls([old, nothing_yet])[group_key(WORLD)] == ()


def test_a_rank_that_the_others_went_on_without_is_not_what_they_wait_for() -> None:
    """The run was made smaller two hours ago, and evaluates."""
    elsewhere = [facts(rank, reported((WORLD | {"ranks": [0, 1, 2]}, 16, []))) for rank in (0, 1, 2)]
    left = facts(3, age_s=7200, last_step=3)
    finding = found([*elsewhere, left])
    assert (finding.cause, finding.culprits) == ("busy", ())
    assert "Ranks 0-2 are at train.py:41 in train." in finding.sentence
    just_now = found([*elsewhere, facts(3, age_s=10)])
    assert (just_now.cause, just_now.culprits) == ("silent", (3,))
    ended = [facts(rank, age_s=20, has_ended=True) for rank in (0, 1, 2)]
    assert hang(NOW, [*ended, left]) is None


def test_ranks_whose_patience_ends_later_are_not_missing() -> None:
    """Ten of its own longest steps each: 100 s on rank 0, longer on the others. Which of them is missing, if any, is
    not known however long rank 0 has waited."""
    first = facts(0, reported((WORLD, 16, [call(17, 101.0)]), stalled_s=100.0), hang_seen_ns=NOW - 4 * SECOND)
    ranks = [first, *(facts(rank) for rank in (1, 2, 3))]
    assert hang(NOW, ranks) is None
    alive = msgspec.structs.replace(first, last_seen_ns=NOW + 21 * SECOND)
    finding = hang(NOW + 22 * SECOND, [alive, *(facts(rank, age_s=-21) for rank in (1, 2, 3))])
    assert finding is not None
    assert (finding.cause, finding.culprits, finding.missing, finding.waiting) == ("undecided", (), (), (0,))
    assert finding.sentence.endswith(
        "Whether ranks 1-3 have called it is not known: they have not reported since step 7."
    )


def staged(*ranks: RankEvidence, at_s: int) -> HangFinding | None:
    """`at_s` seconds after rank 0 has reported; all others speak, and have not reported."""
    known = {each.rank: msgspec.structs.replace(each, last_seen_ns=NOW + at_s * SECOND) for each in ranks}
    others = {rank: facts(rank, age_s=-at_s) for rank in range(4)}
    return hang(NOW + at_s * SECOND, [*(others | known).values()])


def test_who_is_missing_is_named_as_reports_come_in_and_not_before() -> None:
    """Rank 2 has skipped the collective; the ranks report one after the other."""
    (first, second, fourth), third = waiting(0, 1, 3), facts(2, reported((WORLD, 16, [])))
    assert staged(first, at_s=3) is None
    alone = staged(first, at_s=9)
    assert alone is not None and (alone.cause, alone.culprits, alone.missing) == ("undecided", (), ())
    decided = staged(first, third, at_s=10)
    assert decided is not None and (decided.cause, decided.culprits, decided.missing) == ("absent", (2,), (2,))
    assert decided.sentence.endswith(
        "Rank 2 is at train.py:41 in train. Whether ranks 1 and 3 have called it is not known: they have not reported "
        "since step 7."
    )
    one_left = staged(first, second, third, at_s=11)
    assert one_left is not None and (one_left.culprits, one_left.missing) == ((2,), (2,))
    assert "Whether rank 3 has called it is not known: it has not reported since step 7." in one_left.sentence
    whole = staged(first, second, third, fourth, at_s=12)
    assert whole is not None and whole.culprits == (2,) and "not known" not in whole.sentence


def test_a_silent_rank_is_named_beside_those_that_have_not_reported() -> None:
    finding = hang(NOW + 9 * SECOND, [msgspec.structs.replace(waiting(0)[0], last_seen_ns=NOW + 9 * SECOND), *(
        facts(rank, age_s=-9) for rank in (1, 3)), facts(2)])  # fmt: skip
    assert finding is not None and (finding.cause, finding.culprits, finding.missing) == ("silent", (2,), (2,))


def test_the_last_rank_that_has_not_reported_is_the_one_that_is_missing() -> None:
    finding = staged(*waiting(0, 1, 3), at_s=9)
    assert finding is not None and (finding.cause, finding.culprits) == ("absent", (2,))


def test_a_run_that_was_killed_after_it_hung_is_told_as_it_was() -> None:
    an_hour = 3600 * SECOND
    ranks = [*waiting(0, 1, 3), facts(2, age_s=11)]
    live, later = hang(NOW, ranks), hang(NOW + 2 * an_hour, ranks)
    assert live is not None and later is not None
    assert (
        (later.cause, later.culprits, later.silent)
        == (live.cause, live.culprits, live.silent)
        == ("silent", (2,), (2,))
    )
    assert later.sentence.endswith("Nothing has come from any rank for 2 h since: the run was killed, or is cut off.")
    assert later.since_s == pytest.approx(live.since_s + 7200)


@pytest.mark.parametrize("stalled_s", [1e308, -1e308, "long", None, True])
def test_a_time_that_cannot_be_is_none(stalled_s: Any) -> None:
    data = reported((WORLD, 16, [call(17, waited_s=stalled_s)])) | {"stalled_s": stalled_s}
    assert 0 <= found([facts(rank, data) for rank in range(4)]).since_s <= 2


@pytest.mark.parametrize(
    "groups", [5, "abc", {"a": 1}, [WORLD | {"enqueued": 1e300, "completed": 1, "waiting": [call(5)]}]]
)
def test_groups_that_make_no_sense_are_none(groups: Any) -> None:
    finding = found([facts(0, {"stalled_s": 9.0, "groups": groups}), facts(1, {"stalled_s": 9.0, "groups": groups})])
    assert finding.cause == "busy"
