"""What is advised where a rank, or communication, is slow, by what the ranks compute on."""

from __future__ import annotations

from typing import Any

import pytest

from rangewatch_server.collectives.straggler import COMMUNICATION_SLOW
from rangewatch_server.rules.machine.straggler import is_load, remedies


def verdict(kind: str, rank: int | None = None, where: str = "communication") -> dict[str, Any]:
    return {"class": kind, "rank": rank, "where": where}


@pytest.mark.parametrize("kind", [COMMUNICATION_SLOW, "compute"])
def test_ranks_without_gpus_are_given_no_advice_on_gpus(kind: str) -> None:
    for each in remedies(verdict(kind, 1, "forward"), has_gpu=False):
        assert "GPU" not in each.text and "card" not in each.text
        assert "processes" in each.text


def test_ranks_with_gpus_are() -> None:
    (links,) = remedies(verdict(COMMUNICATION_SLOW), has_gpu=True)
    assert "links between the ranks' GPUs" in links.text
    (look,) = remedies(verdict("compute", 1, "forward"), has_gpu=True)
    assert "rank 1's GPU and host" in look.text


def test_communication_within_one_host_s_cpus_is_slow_by_its_load() -> None:
    slow = verdict(COMMUNICATION_SLOW)
    assert is_load(slow, {"cpu"}, {"one"})
    assert not is_load(slow, {"cpu"}, {"one", "other"})
    assert not is_load(slow, {"NVIDIA H100"}, {"one"})
    assert not is_load(verdict("compute", 1, "forward"), {"cpu"}, {"one"})
