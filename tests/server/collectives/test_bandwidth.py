"""nccl-tests' own definitions, with the size of the group and the duration of the rank that came last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch_server.collectives.bandwidth import Speed, size_class, speeds
from rangewatch_server.collectives.matching import match
from rangewatch_server.collectives.records import busbw_factor, kind_of
from tests.server.collectives.traces import chunk, group_about, row


def table(durations_s: Any, ranks: int = 4, **columns: Any) -> list[Speed]:
    """Speeds of collectives whose durations are (ranks with records, n)."""
    group = group_about("0", range(ranks), "world")
    return speeds(
        match(
            {
                rank: [chunk(rank, [row(n + 1, each, group=group, **columns) for n, each in enumerate(mine)])]
                for rank, mine in enumerate(durations_s)
            }
        )
    )


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("all_to_all", 0.75),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("gather", 3.0),  # 3/4 of all that the root gets, which is four times what a rank's record says
        ("scatter", 3.0),
    ],
)
def test_busbw_of_four_ranks(op: str, factor: float) -> None:
    symmetric = op not in {"broadcast", "reduce", "all_to_all", "gather", "scatter"}
    durations_s = [[0.01], [0.01], [0.01], [0.01]]
    (speed,) = table(durations_s, op=op, bytes=1e9, is_symmetric=symmetric)
    assert speed.algbw == pytest.approx(4e11 if op in {"gather", "scatter"} else 1e11)
    assert speed.busbw == pytest.approx(factor * 1e11)
    assert (speed.wait_p50_s == 0.0) is symmetric


def test_waiting_is_not_counted_as_transfer() -> None:
    (speed,) = table([[0.5] * 100, [0.5] * 100, [0.01] * 99 + [0.02], [0.5] * 100], bytes=1e6)
    assert speed.duration_p50_s == pytest.approx(0.01) and speed.duration_max_s == pytest.approx(0.02)
    assert speed.algbw == pytest.approx(1e8) and speed.busbw == pytest.approx(1.5e8)
    assert speed.wait_p99_s == pytest.approx(0.49, rel=1e-3)
    assert speed.wait_p50_s == pytest.approx(0.49) and speed.count == speed.timed_count == 100
    assert speed.bytes == pytest.approx(1e8)


def test_the_group_has_its_size_where_ranks_have_no_records() -> None:
    (speed,) = table([[0.01], [0.02]], ranks=8, bytes=1e9)
    assert speed.busbw == pytest.approx(1e11 * 2 * 7 / 8)


def test_rows_are_by_group_op_and_size() -> None:
    one = group_about("1", (0, 1), "tensor parallel")
    rows = [
        row(1, bytes=1024.0), row(2, bytes=2047.0), row(3, bytes=2048.0), row(4, op="barrier", dtype="", bytes=0.0),
        row(5, np.nan, bytes=np.nan), row(1, group=one, time_ns=1),
    ]  # fmt: skip
    found = speeds(match({0: [chunk(0, rows)], 1: [chunk(1, rows)]}))
    assert [(each.group.title, each.op, each.least_bytes, each.count) for each in found] == [
        ("0", "all_reduce", 0, 1),
        ("0", "all_reduce", 1024, 2),
        ("0", "all_reduce", 2048, 1),
        ("0", "barrier", 0, 1),
        ("tensor parallel", "all_reduce", 1024, 1),
    ]
    unknown, barrier = found[0], found[3]
    assert unknown.duration_p50_s is None and unknown.algbw is None and unknown.wait_p50_s is None
    assert barrier.duration_p50_s == 0.001 and barrier.algbw is None and barrier.busbw is None


def test_what_took_no_time_has_no_speed() -> None:
    (speed,) = table([[0.0], [0.0]])
    assert speed.algbw is None and speed.duration_p50_s == 0.0


def test_size_classes_are_powers_of_two() -> None:
    sizes = [0, np.nan, 1, 2, 3, 4, 1023, 1024, 1025, 2.0**40, 1e300, np.inf]
    assert size_class(np.array(sizes)).tolist() == [0, 0, 1, 2, 2, 4, 512, 1024, 1024, 2**40, 2**62, 0]


def test_names_of_any_backend_are_understood() -> None:
    for kind, names in {
        "all_reduce": ("allreduce_", "ALLREDUCE_COALESCED", "nccl:all_reduce"),
        "all_gather": ("_allgather_base_", "nccl:_all_gather_base", "all_gather_into_tensor_coalesced"),
        "reduce_scatter": ("_reduce_scatter_base", "gloo:reduce_scatter_tensor_coalesced"),
        "all_to_all": ("alltoall_base_",),
        "reduce": ("reduce_",),
        "gather": ("gloo:gather",),
    }.items():
        assert {kind_of(name) for name in names} == {kind}
    assert busbw_factor("nccl:all_reduce", 1) == 0.0
    assert np.isnan(busbw_factor("barrier", 4))
