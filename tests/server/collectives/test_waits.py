"""Waits are counted once, and belong to the rank that was waited for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch_server.collectives.matching import match
from rangewatch_server.collectives.waits import Waits, waits_of
from tests.server.collectives.traces import chunk, group_about, row

START_NS = 10**18


def measured(durations_s: Any, times_s: Any = None, **columns: Any) -> Waits:
    """(ranks, n) durations of one group's collectives; `times_s`: (ranks, n) when they were enqueued."""
    durations_s = np.array(durations_s, float)
    ranks, count = durations_s.shape
    times_s = np.tile(np.arange(count), (ranks, 1)) if times_s is None else np.array(times_s)
    group = group_about("0", range(ranks))
    by_rank = {}
    for rank in range(ranks):
        rows = [
            row(
                n + 1,
                durations_s[rank, n],
                group=group,
                time_ns=START_NS + int(times_s[rank, n] * 1e9) + rank * 3600 * 10**9,
                step=columns.get("step", [0] * count)[n],
                is_async=columns.get("is_async", np.nan),
                is_symmetric=columns.get("is_symmetric", 1),
            )
            for n in range(count)
        ]
        by_rank[rank] = [chunk(rank, rows)]
    return waits_of(match(by_rank))


def test_the_last_rank_waits_for_nobody_and_the_others_for_it() -> None:
    waits = measured([[0.0315], [0.0316], [0.001], [0.0313]])
    assert waits.wait_s[:, 0] == pytest.approx([0.0305, 0.0306, 0.0, 0.0303])
    assert waits.cost_to_others_s[:, 0] == pytest.approx([0, 0, 0.0914, 0])
    assert waits.delay_s[:, 0] == pytest.approx([0, 0, 0.0914 / 3, 0])
    assert waits.last_count[:, 0].tolist() == [0, 0, 1, 0]
    assert waits.clear_count[:, 0].tolist() == [1, 1, 1, 1]


def test_blocking_collectives_add_up_and_asynchronous_ones_do_not() -> None:
    durations_s = [[0.031, 0.031, 0.036], [0.001, 0.001, 0.001]]
    assert measured(durations_s).wait_s[0, 0] == pytest.approx(0.095)  # nobody says: none of them overlap
    assert measured(durations_s, is_async=0).wait_s[0, 0] == pytest.approx(0.095)
    assert measured(durations_s, is_async=1).wait_s[0, 0] == pytest.approx(0.035)
    steps = [0, 0, 1]  # at its end a step has waited for all of them
    assert measured(durations_s, is_async=1, step=steps).wait_s[0] == pytest.approx([0.03, 0.035])


def test_what_overlaps_cannot_have_blocked() -> None:
    times_s = [[0.0, 0.01, 0.02], [0.03, 0.04, 0.05]]
    waits = measured([[0.031, 0.031, 0.031], [0.001, 0.001, 0.001]], times_s)
    assert waits.wait_s[0, 0] == pytest.approx(0.03)
    assert waits.blocks[0].lost_s[0].max() == pytest.approx(0.03)
    assert waits.blocked_s[0, 0] == pytest.approx(0.03)
    reported = measured([[0.031, 0.031, 0.031], [0.001, 0.001, 0.001]], times_s, is_async=0)
    assert reported.wait_s[0, 0] == pytest.approx(0.09)  # on a device: the host runs ahead of it


def test_a_wait_that_ended_before_the_step_did_blocked_nobody() -> None:
    waits = measured([[0.031, 0.002, 0.001], [0.001, 0.001, 0.001]], is_async=1)
    assert waits.wait_s[0, 0] == pytest.approx(0.03) and waits.blocked_s[0, 0] == 0


@pytest.mark.parametrize(
    ("durations_s", "is_clear"),
    [
        ([0.0010, 0.00115, 0.00130, 0.00130], False),  # 0.15 ms: less than 0.2 ms
        ([0.0010, 0.00125, 0.00130, 0.00130], True),
        ([0.1000, 0.10400, 0.10500, 0.10500], False),  # 4 ms: less than 5 % of 0.1 s
        ([0.1000, 0.10600, 0.10600, 0.10600], True),
        ([0.0010, 0.00150, 0.00150, 0.40000], True),  # of the median, which one odd one does not move
        ([0.0010, np.nan, np.nan, 0.0310], True),
        ([0.0010, np.nan, np.nan, np.nan], False),
    ],
)
def test_a_rank_is_last_only_above_the_noise(durations_s: list[float], is_clear: bool) -> None:
    waits = measured([[each] for each in durations_s])
    assert waits.last_count.sum() == is_clear


def test_coverage_says_how_many_durations_are_known() -> None:
    waits = measured([[0.03, 0.03, np.nan], [0.001, np.nan, np.nan], [np.nan, np.nan, 0.001]])
    assert (waits.collectives.tolist(), waits.known.tolist(), waits.expected.tolist()) == ([1], [4], [9])
    assert waits.left_out == {"unmatched": 2}
    assert np.isfinite(waits.wait_s).all() and np.isfinite(waits.cost_to_others_s).all()


def test_what_does_not_end_together_is_left_out_and_counted() -> None:
    group = group_about("0", (0, 1))
    rows = [
        row(1, op="broadcast", is_symmetric=0, duration_s=9.0),
        row(2, op="all_to_all", is_symmetric=0),
        row(3, op="broadcast", is_symmetric=0),
        row(4, step=-1),
        row(5),
        row(1, op="send", group=group),
    ]
    late = [each | {"duration_s": 0.5} for each in rows]
    waits = waits_of(match({0: [chunk(0, rows)], 1: [chunk(1, late)]}))
    assert waits.left_out == {"all_to_all": 1, "broadcast": 2, "no step": 1, "point_to_point": 2}
    assert waits.wait_s.sum() == pytest.approx(0.499)


def test_a_record_that_does_not_say_is_symmetric_by_its_op() -> None:
    for op, is_counted in (("all_reduce", True), ("_allgather_base", True), ("broadcast", False), ("reduce", False)):
        by_rank = {r: [chunk(r, [row(1, duration, op=op, is_symmetric=np.nan)])] for r, duration in enumerate((1, 2))}
        assert bool(waits_of(match(by_rank)).collectives.sum()) is is_counted, op


def test_one_delay_seen_in_two_groups_is_one_delay() -> None:
    """Rank 0 comes 30 ms late to a group with rank 1 and then to one with rank 2: each lost 30 ms, no one 60."""
    both = [(group_about(f"0{other}", (0, other)), other) for other in (1, 2)]
    by_rank: dict[int, Any] = {0: []}
    for n, (group, other) in enumerate(both):
        at = {"group": group, "step": 0, "time_ns": START_NS + n}
        by_rank[0].append(row(1, 0.001, **at))
        by_rank[other] = [chunk(other, [row(1, 0.031, **at)])]
    by_rank[0] = [chunk(0, by_rank[0])]
    waits = waits_of(match(by_rank))
    assert waits.cost_to_others_s[:, 0] == pytest.approx([0.06, 0, 0])
    assert waits.delay_s[:, 0] == pytest.approx([0.03, 0, 0])


def test_an_older_process_of_a_rank_hides_nothing_of_the_newer() -> None:
    """Its clock was ahead: were both on one line of time, the new one's waits would come before the old one's."""
    rows = [row(n, 0.031, step=n // 4, is_async=1) for n in range(1, 9)]
    new = [each | {"time_ns": each["time_ns"] - 1000, "step": each["step"] + 10} for each in rows]
    quick = [[each | {"duration_s": 0.001} for each in part] for part in (rows, new)]
    waits = waits_of(
        match({0: [chunk(0, rows, 1), chunk(0, new, 2)], 1: [chunk(1, quick[0], 1), chunk(1, quick[1], 2)]})
    )
    assert waits.steps.tolist() == [0, 1, 2, 10, 11, 12]
    assert waits.wait_s[0] == pytest.approx([0.03] * 6)


def test_steps_that_came_again_are_those_of_the_newer_process() -> None:
    rows = [row(n, 0.001, step=n) for n in range(1, 7)]
    again = [row(n, 0.001, step=n + 3, time_ns=int(2e18) + n) for n in range(1, 7)]
    late = [[each | {"duration_s": seconds} for each in part] for part, seconds in ((rows, 0.5), (again, 0.031))]
    waits = waits_of(match({0: [chunk(0, rows + again)], 1: [chunk(1, late[0] + late[1])]}))
    assert waits.steps.tolist() == list(range(1, 10))
    assert waits.wait_s[1] == pytest.approx([0.499] * 3 + [0.03] * 6)


def test_nothing_is_nothing() -> None:
    waits = waits_of(match({}))
    assert waits.wait_s.shape == (0, 0) and waits.left_out == {}
    assert waits_of(match({0: [chunk(0, [row(1)])]})).wait_s.shape == (1, 0)
