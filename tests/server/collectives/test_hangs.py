"""Every way to hang is named, by the evidence that agents send: events in their form, and what they no longer send."""

from __future__ import annotations

from typing import Any

import pytest

from rangewatch.wire.events import Hang, read
from rangewatch_server.collectives.hang_evidence import Call, RankEvidence, is_in_data_loader, recent_calls
from rangewatch_server.collectives.hang_verdict import HangFinding, hang
from rangewatch_server.collectives.matching import match
from rangewatch_server.collectives.records import group_key
from tests.server.collectives.traces import chunk, group_about, row

SECOND = 10**9
NOW = 1_700_000_000 * SECOND
WORLD = group_about("0", range(4), "data parallel")
TRAIN = {"file": "/home/me/train.py", "line": 41, "function": "train"}
LOADER = """Current thread 0x00007f01 (most recent call first):
  File "/site-packages/rangewatch/collectors/stacks.py", line 50 in all_threads

Thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 355 in wait

Thread 0x00007f03 (most recent call first):
  File "/usr/lib/python3.12/selectors.py", line 415 in select
  File "/site-packages/torch/utils/data/dataloader.py", line 1295 in _try_get_data
  File "/home/me/train.py", line 38 in train
"""


def call(sequence: int, waited_s: float = 9.0, **other: Any) -> dict[str, Any]:
    said = {"op": "all_reduce", "sequence": sequence, "bytes": 4 * 2**20, "dtype": "float32", "waited_s": waited_s}
    return said | {"enqueued_ns": 5, "step": 7, "bucket": -1} | other


def reported(
    *groups: tuple[dict[str, Any], int, list[dict[str, Any]]], line: Any = TRAIN, stalled_s: float = 8.5
) -> Any:
    """Data of an event of kind `hang`: (group, last one that ended, those that have not)."""
    said = [
        {
            **group,
            "enqueued": max([completed, *(each["sequence"] for each in waiting)]),
            "completed": completed,
            "flight_recorder": None,
            "waiting": waiting,
        }
        for group, completed, waiting in groups
    ]
    return {"step": 7, "stalled_s": stalled_s, "is_waiting": True, "rung": "hooks", "groups": said, "line": line}


def facts(rank: int, hang: Any = None, age_s: float = 1.0, **other: Any) -> RankEvidence:
    at = {"last_seen_ns": NOW - int(age_s * SECOND), "last_step": 7, "hang_seen_ns": NOW - SECOND if hang else None}
    return RankEvidence(rank=rank, hang=None if hang is None else read(Hang, hang), **(at | other))


def waiting(*ranks: int, sequence: int = 17) -> list[RankEvidence]:
    return [facts(rank, reported((WORLD, sequence - 1, [call(sequence)]))) for rank in ranks]


def found(ranks: list[RankEvidence], **other: Any) -> HangFinding:
    finding = hang(NOW, ranks, **other)
    assert finding is not None
    return finding


def test_a_rank_elsewhere_in_its_code() -> None:
    """It has ended 16 and not called 17; its agent tells where it is."""
    elsewhere = reported((WORLD, 16, []), line={"file": "C:\\me\\train.py", "line": 77, "function": "save"})
    finding = found([*waiting(0, 1, 3), facts(2, elsewhere)])
    assert (finding.kind, finding.cause) == ("non-communication hang", "absent")
    assert (finding.culprits, finding.missing, finding.waiting) == ((2,), (2,), (0, 1, 3))
    assert finding.sequence == 17 and finding.since_s == pytest.approx(9.5)
    assert finding.sentence == (
        "Rank 2 has not joined all_reduce of 4 MiB float32 (collective 17) of group data parallel, "
        "in which ranks 0, 1 and 3 wait for 9.5 s. Rank 2 is at train.py:77 in save."
    )
    rows = {each.rank: each for each in finding.ranks}
    assert (rows[2].role, rows[2].enqueued, rows[2].completed, rows[2].waits_for) == ("missing", 16, 16, None)
    assert (rows[0].role, rows[0].enqueued, rows[0].completed) == ("waiting", 17, 16)
    assert rows[0].waits_for == Call(17, "all_reduce", 4.0 * 2**20, "float32", 9.0)


def test_a_silent_rank_is_named_at_once() -> None:
    """SIGSTOP 10 s ago: nothing has come since, and what it was in is not known."""
    finding = found([*waiting(0, 1, 3), facts(2, age_s=10.2)])
    assert (finding.cause, finding.culprits, finding.silent) == ("silent", (2,), (2,))
    assert "Nothing has come from rank 2 for 10.2 s since step 7: stopped, killed" in finding.sentence
    assert finding.sentence.startswith("Rank 2 has not joined")


def test_a_silent_rank_that_had_called_it_is_named_too() -> None:
    calls = {group_key(WORLD): (Call(17, "all_reduce", 4.0 * 2**20, "float32"),)}
    finding = found([*waiting(0, 1, 3), facts(2, age_s=9, calls=calls)])
    assert (finding.cause, finding.culprits) == ("silent", (2,))


def test_a_rank_that_has_ended_left_the_others_waiting() -> None:
    finding = found([*waiting(0, 1, 3), facts(2, age_s=60, has_ended=True)])
    assert (finding.cause, finding.culprits, finding.silent) == ("ended", (2,), ())
    assert finding.sentence.endswith("Rank 2 has ended.")


def test_a_data_loader_that_gives_nothing() -> None:
    finding = found([*waiting(0, 1, 3), facts(2, reported((WORLD, 16, [])), stacks=LOADER)])
    assert (finding.kind, finding.cause, finding.culprits) == ("non-communication hang", "data loader", (2,))
    assert "The data loader of rank 2 gives nothing. Rank 2 is at train.py:41 in train." in finding.sentence


def test_only_the_main_thread_says_that_it_loads_data() -> None:
    parts = LOADER.split("\n\n")
    assert is_in_data_loader(LOADER)
    assert is_in_data_loader(LOADER.replace("/", "\\"))
    assert not is_in_data_loader("\n\n".join([parts[2], parts[0], parts[1]]))  # a thread of the user's that prefetches
    assert not is_in_data_loader("")


def test_all_in_the_same_collective_is_the_communication() -> None:
    finding = found(waiting(0, 1, 2, 3))
    assert (finding.kind, finding.cause, finding.culprits) == ("communication hang", "communication", ())
    assert "All 4 ranks of group data parallel have called all_reduce of 4 MiB float32" in finding.sentence


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"bytes": 8}, "rank 2 called all_reduce of 8 B float32 at train.py:99 in oops"),
        ({"dtype": "bfloat16"}, "rank 2 called all_reduce of 4 MiB bfloat16 at train.py:99 in oops"),
        ({"op": "broadcast"}, "rank 2 called broadcast of 4 MiB float32 at train.py:99 in oops"),
    ],
)
def test_another_call_at_one_sequence_is_the_finding(other: dict[str, Any], words: str) -> None:
    line = TRAIN | {"line": 99, "function": "oops"}
    odd = facts(2, reported((WORLD, 16, [call(17, **other)]), line=line))
    finding = found([*waiting(0, 1, 3), odd])
    assert (finding.kind, finding.cause, finding.culprits) == ("non-communication hang", "mismatch", (2,))
    assert words in finding.sentence
    assert "ranks 0, 1 and 3 called all_reduce of 4 MiB float32 at train.py:41 in train" in finding.sentence
    assert [side.ranks for side in finding.sides] == [(0, 1, 3), (2,)]


def test_a_mismatch_of_two_names_nobody_while_others_may_tell() -> None:
    """Who is odd is for most ranks of the group to say."""
    ranks = [*waiting(1), facts(2, reported((WORLD, 16, [call(17, bytes=16.0)])))]
    finding = hang(NOW, [*ranks, facts(0), facts(3)])
    assert finding is not None and (finding.cause, finding.culprits) == ("mismatch", ())
    finding = hang(NOW, [*ranks, *waiting(0), facts(3)])
    assert finding is not None and finding.culprits == (), "the fourth may have called what rank 2 called"
    finding = hang(NOW, [*ranks, *waiting(0, 3)])
    assert finding is not None and finding.culprits == (2,)


def test_a_smaller_call_that_has_ended_is_a_mismatch_too() -> None:
    """Rank 2 was through with it, since gloo does not look at sizes, and is in the next one."""
    odd = facts(
        2,
        reported((WORLD, 17, [call(18)])),
        calls=recent_calls([chunk(2, [row(n, group=WORLD, bytes=8.0) for n in range(1, 18)])]),
    )
    finding = found([*waiting(0, 1, 3), odd])
    assert (finding.cause, finding.culprits, finding.sequence) == ("mismatch", (2,), 17)


def test_of_two_ranks_that_differ_both_are_named() -> None:
    pair = group_about("0", (0, 1))
    ranks = [facts(rank, reported((pair, 4, [call(5, bytes=100 + rank)]))) for rank in (0, 1)]
    finding = found(ranks)
    assert (finding.cause, finding.culprits) == ("mismatch", (0, 1))


def test_a_mismatch_in_the_records_before_the_hang() -> None:
    """One of the four skipped a collective: what it called next was compared with what they had called."""
    rows = {rank: [row(n, group=WORLD, step=7, bytes=n * 8.0) for n in range(10, 16)] for rank in range(4)}
    for n, each in enumerate(rows[2][3:], 14):
        each["bytes"] = n * 8.0
    desyncs = match({rank: [chunk(rank, mine)] for rank, mine in rows.items()}).desyncs
    finding = found([*waiting(0, 1, 3), facts(2, reported((WORLD, 16, [])))], desyncs=desyncs)
    assert (finding.cause, finding.culprits, finding.sequence) == ("mismatch", (2,), 13)
    older = [row | {"step": 2} for row in rows[0]], [row | {"step": 2} for row in rows[2]]
    long_ago = match({0: [chunk(0, older[0])], 2: [chunk(2, older[1])]}).desyncs
    assert long_ago and found(waiting(0, 1, 2, 3), desyncs=long_ago).cause == "communication"


def test_sizes_that_may_differ_are_no_mismatch() -> None:
    ranks = [facts(rank, reported((WORLD, 4, [call(5, op="all_to_all", bytes=100 + rank)]))) for rank in range(4)]
    assert found(ranks).cause == "communication"


def two_groups() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return [group_about(f"tp{n}", (n, n + 1)) for n in (0, 2)], [group_about(f"dp{n}", (n, n + 2)) for n in (0, 1)]


def test_who_waits_elsewhere_is_missing_but_not_to_blame() -> None:
    """Rank 2 is absent: 3 waits for it in their tensor parallel group, and 1 for 3 in the data parallel one."""
    tensor, data = two_groups()
    ranks = [
        facts(0, reported((tensor[0], 40, []), (data[0], 4, [call(5)]))),
        facts(1, reported((tensor[0], 40, []), (data[1], 4, [call(5)]))),
        facts(2, reported((tensor[1], 40, []), (data[0], 4, []))),
        facts(3, reported((tensor[1], 40, [call(41)]), (data[1], 4, []))),
    ]
    finding = found(ranks)
    assert (finding.cause, finding.culprits, finding.waiting) == ("absent", (2,), (0, 1, 3))
    assert finding.group is not None and finding.group.name in {"dp0", "tp2"}


def test_ranks_that_wait_for_each_other_call_in_another_order() -> None:
    tensor, data = two_groups()
    pair = [tensor[0], data[0] | {"ranks": [0, 1]}]
    ranks = [facts(0, reported((pair[0], 4, [call(5)]), (pair[1], 4, []))), facts(1, reported((pair[1], 4, [call(5)])))]
    finding = found(ranks)
    assert (finding.cause, finding.culprits) == ("order", (0, 1))
    assert finding.sentence.startswith("Ranks wait for each other in different groups for 9.5 s: ")


def test_asynchronous_collectives_wait_at_the_first_that_somebody_lacks() -> None:
    several = [call(n) for n in (17, 18, 19)]
    ranks = [facts(rank, reported((WORLD, 16, several))) for rank in (0, 1, 3)]
    finding = found([*ranks, facts(2, reported((WORLD, 16, [])))])
    assert (finding.sequence, finding.culprits) == (17, (2,))
    ahead = [facts(0, reported((WORLD, 17, [call(18)]))), *waiting(1, 3), facts(2, reported((WORLD, 17, [])))]
    finding = found(ahead)
    assert (finding.sequence, finding.culprits) == (18, (2,))


def test_a_rank_that_is_about_to_tell_is_not_missing_yet() -> None:
    """Agents look once a second, and send every two, later on a busy machine: who has not told yet may still."""
    ranks = [*waiting(0, 1, 3), facts(2)]
    assert hang(NOW + 4 * SECOND, ranks) is None
    finding = hang(NOW + 6 * SECOND, ranks)
    assert finding is not None and finding.culprits == (2,)


def test_ranks_that_never_told_are_taken_by_their_records() -> None:
    world = group_about("0", range(4))
    others = [facts(rank, reported((world, 16, [call(17)])), hang_seen_ns=NOW - 5 * SECOND) for rank in (0, 1)]
    calls = recent_calls([chunk(2, [row(n, group=world) for n in range(1, 20)])])
    assert [each.sequence for each in calls[group_key(world)]] == list(range(4, 20))
    finding = found([*others, facts(2, calls=calls), facts(3)])
    assert finding.cause == "mismatch" or finding.culprits == (3,)


def test_nobody_in_a_collective() -> None:
    ranks = [facts(rank, reported((WORLD, 16, []))) for rank in range(4)]
    finding = found(ranks)
    assert (finding.cause, finding.culprits, finding.group) == ("busy", (), None)
    loading = [*ranks[:3], facts(3, reported((WORLD, 16, [])), stacks=LOADER)]
    finding = found(loading)
    assert (finding.cause, finding.culprits) == ("data loader", (3,))
    alone = found([facts(0, {"stalled_s": 30.0, "groups": []}, stacks=LOADER)])
    assert (alone.cause, alone.culprits) == ("data loader", (0,))


def test_a_killed_rank_whose_others_have_ended() -> None:
    """gloo tells the others at once: they end with an error, and only the dead one says nothing."""
    others = [facts(rank, age_s=9, has_ended=True) for rank in (0, 1, 3)]
    assert hang(NOW, [*others, facts(2, age_s=3)]) is None
    finding = found([*others, facts(2, age_s=9)])
    assert (finding.cause, finding.culprits) == ("silent", (2,))
    assert hang(NOW, [*others, facts(2, age_s=9, has_ended=True)]) is None


@pytest.mark.parametrize(
    "ranks",
    [
        [],
        [facts(rank) for rank in range(4)],
        [facts(0, age_s=30)],  # one rank alone: nobody else speaks
        [facts(rank, age_s=30) for rank in range(4)],  # the network, or the server was away
        [*(facts(rank) for rank in range(3)), facts(3, age_s=30)],  # the others go on: it is not waited for
    ],
)
def test_no_hang(ranks: list[RankEvidence]) -> None:
    assert hang(NOW, ranks) is None


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"groups": None, "line": 5, "stalled_s": "long"},
        {"groups": [5, {}, {"hash": "x"}, {"hash": "x", "enqueued": "many", "completed": 1}], "line": {"file": ""}},
        {"groups": [WORLD | {"enqueued": 1, "completed": 0, "waiting": [{"op": "x"}]}]},
        {"groups": [WORLD | {"ranks": None, "enqueued": 1, "completed": 0, "waiting": [call(1, bytes=None)]}]},
    ],
)
def test_evidence_in_another_form_is_no_evidence(data: dict[str, Any]) -> None:
    finding = found([facts(0, data), facts(1, age_s=20)])
    assert finding.sentence


def test_a_thousand_ranks() -> None:
    world = group_about("0", range(1024))
    ranks = [facts(rank, reported((world, 16, [call(17)]))) for rank in range(1024) if rank != 700]
    finding = found([*ranks, facts(700, age_s=12)])
    assert finding.culprits == (700,) and len(finding.ranks) == 1024
    assert "in which ranks 0-699 and 701-1023 wait" in finding.sentence


def test_a_host_with_another_clock_changes_nothing() -> None:
    """Times of an agent's own are in no decision: only how long ago the server heard of it."""
    an_hour = 3600 * SECOND
    ranks = [
        facts(rank, reported((WORLD, 16, [call(17, enqueued_ns=NOW + rank * an_hour)] if rank != 2 else [])))
        for rank in range(4)
    ]
    assert found(ranks).culprits == (2,)
