"""The report on a terminal, and what the dashboard gets: bounded, and only what it needs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import msgspec
import pytest

from rangewatch.checks.linkcheck import output
from rangewatch.checks.linkcheck.output import NotPosted, event_of, post
from tests.agent.ingest_double import IngestDouble


def result(count: int, bad: tuple[int, int] | None = None) -> dict[str, Any]:
    pairs = [
        {"a": a, "b": b, "ok": (a, b) != bad, "slow": False, "latency_s": 1.25e-05, "busbw_bytes_per_s": 1.5e10,
         "error": "it hangs " * 100 if (a, b) == bad else "", "log": "secret" * 100}
        for a, b in combinations(range(count), 2)
    ]  # fmt: skip
    ranks = [
        {"rank": rank, "host": "host", "local_rank": 0, "device": "cuda:0 NVIDIA H100", "ok": True, "fault": "",
         "error": "", "log": ""} for rank in range(count)
    ]  # fmt: skip
    return {
        "ok": bad is None, "world_size": count, "duration_s": 4.0, "ranks": ranks, "pairs": pairs, "bad_ranks": [],
        "bad_pairs": [list(bad)] if bad else [], "slow_pairs": [], "bad_groups": [], "bad_hosts": [], "subsets": [],
        "nccl_error": "", "backend_reason": "", "is_passing_again": False, "all_ranks": None,
    }  # fmt: skip


def test_a_small_result_goes_whole_and_without_logs() -> None:
    data = event_of(result(4, bad=(1, 2)))
    assert len(data["pairs"]) == 6 and data["pairs_left_out"] == 0
    assert "secret" not in str(data)


def test_a_huge_result_keeps_what_is_bad() -> None:
    data = event_of(result(256, bad=(200, 255)))
    assert len(msgspec.json.encode(data)) < 1 << 20
    assert data["pairs_left_out"] == 256 * 255 // 2 - len(data["pairs"]) > 0
    assert [(pair["a"], pair["b"]) for pair in data["pairs"] if not pair["ok"]] == [(200, 255)]


def test_the_run_ends_with_its_result(ingest: IngestDouble) -> None:
    post(ingest.url, None, "check", result(3, bad=(0, 1)))
    (batch,) = ingest.batches
    assert [event.kind for event in batch.events] == ["linkcheck", "finished"]
    assert batch.events[0].message.startswith("the link of ranks 0 and 1 is bad: it hangs")
    assert (ingest.openings[0].info.rank, ingest.openings[0].info.world_size) == (0, 1)


def test_a_busy_server_is_asked_again_and_a_refusal_is_told(
    ingest: IngestDouble, refuse: Callable[..., Callable[[Any], Any]]
) -> None:
    ingest.script.append(refuse(503, "busy", Retry_After="0"))
    post(ingest.url, None, "check", result(2))
    assert len(ingest.batches) == 1
    ingest.script.append(refuse(401, "unauthorized"))
    with pytest.raises(NotPosted, match="401"):
        post(ingest.url, None, "check", result(2))


def table(width: int | None) -> list[str]:
    return list(output._tables(result(8) | {"message_bytes": 4 << 20}, width))


def test_a_matrix_is_no_wider_than_the_terminal_and_has_every_pair_twice() -> None:
    lines = table(60)
    assert max(map(len, lines)) <= 60
    cells = [cell for line in lines for cell in line.split()[1:]]
    assert cells.count("15") == cells.count("12.5") == 8 * 7


def test_without_a_terminal_it_is_in_one_piece() -> None:
    assert len(table(None)) == 2 * (1 + 1 + 8)
