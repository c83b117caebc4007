"""The same collective is found on all its ranks, whatever order, numbering, gaps and restarts its records have."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rangewatch_server.collectives.matching import MAX_GENERATIONS, Block, Matched, match
from tests.server.collectives.traces import Chunk, Training, chunk, group_about, row


def only(matched: Matched) -> Block:
    (block,) = matched.blocks
    return block


def cells(matched: Matched) -> list[Any]:
    """All that is known, comparable."""
    return [
        (
            block.group,
            block.age,
            block.ranks.tolist(),
            block.sequence.tolist(),
            block.step.tolist(),
            [matched.ops[op] for op in block.op],
            block.bytes.tolist(),
            block.times_ns.tolist(),
            np.nan_to_num(block.duration_s, nan=-1).tolist(),
        )
        for block in sorted(matched.blocks, key=lambda block: (block.group.name, block.age))
    ]


def test_ranks_that_number_names_differently_are_laid_over_one_another() -> None:
    other: dict[str, Any] = {"op": "barrier", "dtype": "", "bytes": 0.0}
    zero = [row(1), row(2, **other), row(3, dtype="bfloat16")]
    matched = match({0: [chunk(0, zero)], 1: [chunk(1, zero[:2]), chunk(1, zero[2:])]})
    block = only(matched)
    assert block.ranks.tolist() == [0, 1] and block.sequence.tolist() == [1, 2, 3]
    assert [matched.ops[op] for op in block.op] == ["all_reduce", "barrier", "all_reduce"]
    assert [matched.dtypes[dtype] for dtype in block.dtype] == ["float32", "", "bfloat16"]
    assert not matched.desyncs and not matched.left_out
    assert block.is_measured.all()


def test_groups_of_the_same_ranks_are_told_apart_by_name_and_instance() -> None:
    again = group_about("0", (0, 1)) | {"instance": 1}
    rows = [row(1), row(1, group=group_about("mesh", (0, 1))), row(1, group=again)]
    matched = match({rank: [chunk(rank, [each]) for each in rows] for rank in (0, 1)})
    assert len(matched.blocks) == 3
    assert all(block.sequence.tolist() == [1] and block.age == 0 for block in matched.blocks)


def test_missing_records_leave_their_cells_empty() -> None:
    matched = match({0: [chunk(0, [row(n) for n in (1, 2, 3, 5)])], 1: [chunk(1, [row(n) for n in (2, 3, 5, 6)])]})
    block = only(matched)
    assert block.sequence.tolist() == [1, 2, 3, 5, 6]  # 4 is nowhere
    assert np.isnan(block.duration_s).tolist() == [[False] * 4 + [True], [True] + [False] * 4]
    assert block.times_ns[1, 0] == -1
    assert block.is_measured.tolist() == [False, True, True, True, False]


def test_a_rank_that_joined_later_is_matched_from_there_on() -> None:
    block = only(match({0: [chunk(0, [row(n) for n in range(1, 10_001)])], 1: [chunk(1, [row(9_990), row(10_000)])]}))
    assert block.sequence[block.is_measured].tolist() == [9_990, 10_000]


def test_huge_and_sparse_sequences_cost_no_more_than_their_rows() -> None:
    sequences = [1, 10**6, 10**12, 2**53]
    rows = [row(sequence, time_ns=number, step=0) for number, sequence in enumerate(sequences)]
    block = only(match({0: [chunk(0, rows)], 1: [chunk(1, rows)]}))
    assert block.sequence.tolist() == sequences
    assert block.is_measured.all()


@pytest.mark.parametrize("incarnations", [(0, 0), (1, 2), ("b", "a")])
def test_a_restart_begins_a_new_generation(incarnations: tuple[int | str, int | str]) -> None:
    old = [row(n) for n in range(1, 101)]
    new = [row(n, time_ns=each["time_ns"] + 10**12) for n, each in zip(range(1, 6), old, strict=False)]
    by_rank = {rank: [chunk(rank, old, incarnations[0]), chunk(rank, new, incarnations[1])] for rank in (0, 1)}
    matched = match(by_rank)
    assert [(block.age, len(block.sequence)) for block in matched.blocks] == [(0, 5), (1, 100)]
    assert matched.blocks[0].times_ns.min() > matched.blocks[1].times_ns.max()
    assert not matched.desyncs and not matched.left_out


def test_a_restart_on_a_host_whose_clock_is_behind_is_told_by_the_number_of_the_process() -> None:
    old = [row(n) for n in range(1, 101)]
    new = [row(n, time_ns=each["time_ns"] - 3600 * 10**9) for n, each in zip(range(1, 6), old, strict=False)]
    matched = match({rank: [chunk(rank, new, 2), chunk(rank, old, 1)] for rank in (0, 1)})
    assert [(block.age, len(block.sequence)) for block in matched.blocks] == [(0, 5), (1, 100)]


def test_after_a_restart_the_newest_generations_are_matched() -> None:
    """Rank 1's first process is no longer in the records: rank 0's must not be taken for the same."""
    old = [row(n, duration_s=5.0) for n in range(1, 101)]
    new = [row(n, time_ns=int(2e18) + n) for n in range(1, 201)]
    matched = match({0: [chunk(0, old + new)], 1: [chunk(1, new)]})
    newest, oldest = matched.blocks
    assert newest.ranks.tolist() == [0, 1] and len(newest.sequence) == 200
    assert oldest.ranks.tolist() == [0] and oldest.duration_s.max() == 5.0


def test_a_restart_is_seen_where_a_ring_has_lost_what_would_come_again() -> None:
    old = [row(n) for n in range(900, 1001)]
    new = [row(n, time_ns=int(2e18) + n) for n in range(1, 6)]
    matched = match({0: [chunk(0, old + new)]})
    assert [(block.age, len(block.sequence)) for block in matched.blocks] == [(0, 5), (1, 101)]


def test_a_short_restart_is_seen_by_what_comes_again() -> None:
    first = [row(n) for n in (1, 2, 4)]
    again = [row(n, time_ns=int(2e18) + n) for n in (1, 2, 3, 4)]
    matched = match({0: [chunk(0, first + again)]})
    assert [block.sequence.tolist() for block in matched.blocks] == [[1, 2, 3, 4], [1, 2, 4]]


def test_threads_that_call_out_of_order_are_no_restart() -> None:
    times = [3, 1, 2, 6, 4, 5, 7]
    rows = [row(sequence, time_ns=place) for place, sequence in enumerate(times)]
    assert only(match({0: [chunk(0, rows)]})).sequence.tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_what_comes_twice_counts_once_with_the_duration_that_is_known() -> None:
    rows = [row(1), row(2)]
    unknown = [row(1, duration_s=np.nan), row(2, duration_s=np.nan)]
    for chunks in itertools.permutations([chunk(0, rows), chunk(0, unknown), chunk(0, rows)]):
        matched = match({0: list(chunks)})
        block = only(matched)
        assert block.sequence.tolist() == [1, 2] and block.duration_s.tolist() == [[0.001, 0.001]]
        assert matched.left_out == {"repeated": 4}


def test_coalesced_operations_are_one_collective() -> None:
    rows = [row(7, time_ns=n, bytes=100.0, duration_s=0.001 * n) for n in (1, 2, 3)]
    block = only(match({0: [chunk(0, [*rows, row(8)])]}))
    assert block.sequence.tolist() == [7, 8]
    assert block.bytes[0] == 300.0 and block.duration_s[0, 0] == 0.003 and block.times_ns[0, 0] == 1


def test_nonsense_is_counted_and_left_out() -> None:
    good = chunk(0, [row(n) for n in range(1, 8)])
    good.columns["group"][0] = 9
    good.columns["op"][1] = np.nan
    good.columns["sequence"][2:5] = [-3, np.inf, 1e300]
    good.columns["duration_s"][5] = -1.0
    matched = match({0: [good], 1: [Chunk(1, "", np.array([5]), {}, {})], 2: []})
    block = only(matched)
    assert matched.left_out == {"malformed": 6}
    assert block.sequence.tolist() == [6, 7] and np.isnan(block.duration_s[0, 0])
    assert matched.ranks.tolist() == [0, 1, 2]
    assert match({}).blocks == []


def test_random_sequences_are_bounded() -> None:
    random = np.random.default_rng(0)
    rows = [row(int(n), time_ns=place) for place, n in enumerate(random.integers(0, 10**9, 2000))]
    assert len(match({0: [chunk(0, rows)]}).blocks) <= MAX_GENERATIONS**2


def test_point_to_point_is_left_out_and_counted() -> None:
    between = [row(0, op=op) | {"sequence": np.nan} for op in ("send", "recv", "nccl:recv 0<-1")]
    matched = match({0: [chunk(0, [*between, row(1)])]})
    assert only(matched).sequence.tolist() == [1]
    assert matched.left_out == {"point_to_point": 3}


def test_another_size_at_one_sequence_is_a_desync_of_the_odd_rank() -> None:
    group = group_about("0", (0, 1, 2), "data parallel")
    by_rank = {rank: [row(n, group=group) for n in range(1, 6)] for rank in (0, 1, 2)}
    by_rank[0][2]["bytes"] = 8.0
    by_rank[1][4] |= {"op": "broadcast", "is_symmetric": 0}
    matched = match({rank: [chunk(rank, rows)] for rank, rows in by_rank.items()})
    first, second = matched.desyncs
    assert (first.sequence, first.step, first.odd_ranks, first.following) == (3, 3, (0,), 1)
    assert [(side.bytes, side.ranks) for side in first.sides] == [(1024.0, (1, 2)), (8.0, (0,))]
    assert (second.sequence, second.odd_ranks, second.following) == (5, (1,), 0)
    assert first.sentence == (
        "At collective 3 of group data parallel rank 0 called all_reduce of 8 B float32; "
        "ranks 1 and 2 called all_reduce of 1 KiB float32."
    )
    block = only(matched)
    assert block.is_desync.tolist() == [False, False, True, False, True]
    assert block.bytes[2] == 1024.0 and matched.ops[block.op[4]] == "all_reduce"  # most ranks', not the first one's
    assert not block.is_measured[[2, 4]].any()


def test_a_rank_without_that_collective_is_on_no_side_of_a_desync() -> None:
    group = group_about("0", (0, 1, 2, 3))
    by_rank = {rank: [row(n, group=group) for n in range(1, 6)] for rank in range(4)}
    by_rank[0][2]["bytes"] = 8.0
    del by_rank[2][2]  # its record was lost
    del by_rank[3][2:]  # it has not come that far
    (desync,) = match({rank: [chunk(rank, rows)] for rank, rows in by_rank.items()}).desyncs
    assert [(side.bytes, side.ranks) for side in desync.sides] == [(8.0, (0,)), (1024.0, (1,))]


def test_of_two_that_differ_neither_is_the_odd_one() -> None:
    matched = match({0: [chunk(0, [row(1)])], 1: [chunk(1, [row(1, dtype="float16")])]})
    assert [(each.odd_ranks, len(each.sides)) for each in matched.desyncs] == [((), 2)]


@pytest.mark.parametrize(
    "other",
    [{"op": "all_to_all"}, {"op": "gather"}, {"op": "scatter"}, {"bytes": np.nan, "op": "all_reduce"}],
)
def test_sizes_that_may_differ_are_no_desync(other: dict[str, Any]) -> None:
    zero, one = row(1, op=other["op"]), row(1, **({"bytes": 77.0} | other))
    assert not match({0: [chunk(0, [zero])], 1: [chunk(1, [one])]}).desyncs


@settings(max_examples=15)
@given(st.randoms(use_true_random=False), st.integers(0, 1000))
def test_the_order_of_chunks_does_not_matter(random: Any, seed: int) -> None:
    chunks = Training(seed % 7, ranks=4, steps=6, tensor_parallel=2).chunks(pieces=5)
    expected = cells(match(chunks))
    shuffled = list(chunks.items())
    random.shuffle(shuffled)
    for _, parts in shuffled:
        random.shuffle(parts)
    assert cells(match(dict(shuffled))) == expected


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=40, unique=True), min_size=1, max_size=4))
def test_every_record_has_its_cell(sequences: list[list[int]]) -> None:
    """One process a rank, any subset of its records: each is in the row of its sequence, and nothing else is there."""
    by_rank = {
        rank: [chunk(rank, [row(n, duration_s=n + rank / 10) for n in sorted(mine)], incarnation=1)]
        for rank, mine in enumerate(sequences)
    }
    block = only(match(by_rank))
    assert set(block.sequence.tolist()) == set().union(*map(set, sequences))
    for rank, mine in enumerate(sequences):
        expected = [n + rank / 10 if n in mine else -1 for n in block.sequence.tolist()]
        assert np.nan_to_num(block.duration_s[rank], nan=-1).tolist() == expected
