"""Each rank out against the majority, and nothing that differs by its nature."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict
from typing import Any

import pytest

from rangewatch_server.machines.environment import odd_ranks


def _facts(rank: int, *, ranks_a_host: int = 4) -> dict[str, Any]:
    host, local_rank = f"node{rank // ranks_a_host}", rank % ranks_a_host
    return {
        "version": 1,
        "python": {"version": "3.11.7"},
        "platform": {"release": "6.8.0"},
        "host": {"name": host, "cpus": 64, "memlock_bytes": None},
        "torch": {
            "version": "2.6.0+cu124", "git": "abc", "cuda": "12.4", "nccl": "2.21.5", "cudnn": 90100,
            "devices": [{"name": "NVIDIA H100"}],
        },
        "packages": {"transformers": "5.0.0"},
        "gpu": {"driver": "550.54.15", "cards": []},
        "infiniband": {"ports": [{"state": "ACTIVE", "rate": "400 Gb/sec"}, {"state": "DOWN", "rate": "10 Gb/sec"}]},
        "nccl_files": {},
        "variables": {
            "RANK": str(rank), "LOCAL_RANK": str(local_rank), "GROUP_RANK": host[4:], "WORLD_SIZE": "8",
            "CUDA_VISIBLE_DEVICES": str(local_rank), "NCCL_DEBUG": "WARN", "TMPDIR": f"/local/{host}/job7",
            "TORCHELASTIC_ERROR_FILE": f"/tmp/run_x/attempt_0/{local_rank}/error.json",
            "TRITON_CACHE_DIR": f"/scratch/triton_{rank}", "NCCL_DEBUG_FILE": f"/logs/cuda-12.4/nccl.{rank}.log",
        },
    }  # fmt: skip


@pytest.fixture
def ranks() -> dict[int, dict[str, Any]]:
    return {rank: _facts(rank) for rank in range(8)}


def test_ranks_that_are_alike_have_no_difference(ranks: dict[int, dict[str, Any]]) -> None:
    assert odd_ranks(ranks) == []
    assert odd_ranks({}) == []
    assert odd_ranks({3: ranks[3]}) == []


def test_one_odd_variable_on_one_of_four_ranks() -> None:
    four = {rank: _facts(rank) for rank in range(4)}
    four[2]["variables"]["NCCL_BUFFSIZE"] = "8388608"
    (found,) = odd_ranks(four)
    assert (found.code, found.where, found.ranks) == ("odd_rank", "NCCL_BUFFSIZE", (2,))
    assert found.what == "Rank 2 on node0: NCCL_BUFFSIZE is 8388608, and not set on the other 3"
    assert found.do == "unset NCCL_BUFFSIZE"
    json.dumps(asdict(found))


@pytest.mark.parametrize(
    ("section", "name", "value", "where", "severity"),
    [
        ("torch", "nccl", "2.27.3", "torch.nccl", "error"),
        ("torch", "version", "2.5.1", "torch.version", "error"),
        ("torch", "devices", [{"name": "NVIDIA A100"}], "gpu.names", "warning"),
        ("gpu", "driver", "535.1", "gpu.driver", "warning"),
        ("packages", "transformers", "4.9", "packages.transformers", "warning"),
        ("infiniband", "ports", [], "infiniband", "warning"),
        ("host", "memlock_bytes", 65536, "host.memlock_bytes", "info"),
        ("variables", "NCCL_DEBUG", "TRACE", "NCCL_DEBUG", "warning"),
        ("variables", "MASTER_ADDR", "elsewhere", "MASTER_ADDR", "warning"),
        ("variables", "NCCL_DEBUG_FILE", "/logs/cuda-12.1/nccl.5.log", "NCCL_DEBUG_FILE", "warning"),
        ("nccl_files", "/etc/nccl.conf", {"NCCL_P2P_DISABLE": "1"}, "NCCL_P2P_DISABLE", "warning"),
    ],
)
def test_a_rank_that_has_it_otherwise(
    ranks: dict[int, dict[str, Any]], section: str, name: str, value: object, where: str, severity: str
) -> None:
    ranks[5][section][name] = value
    (found,) = odd_ranks(ranks)
    assert (found.where, found.severity, found.ranks) == (where, severity, (5,))


def test_a_whole_machine_is_told_as_a_span(ranks: dict[int, dict[str, Any]]) -> None:
    del ranks[0]
    for rank in (5, 6, 7):
        ranks[rank]["torch"]["nccl"] = "2.27.3"
    (found,) = odd_ranks(ranks)
    assert found.what == "Ranks 5-7 on node1: torch.nccl is 2.27.3, and 2.21.5 on the other 4"


def test_halves_that_differ_have_no_majority(ranks: dict[int, dict[str, Any]]) -> None:
    for rank in range(4, 8):
        ranks[rank]["torch"]["nccl"] = "2.27.3"
    (found,) = odd_ranks(ranks)
    assert (found.code, found.ranks) == ("ranks_differ", tuple(range(8)))
    assert found.what == "torch.nccl differs: 2.21.5 on ranks 0-3; 2.27.3 on ranks 4-7"


def test_a_switch_that_is_each_ranks_number_by_chance_is_a_difference() -> None:
    two = {0: _facts(0), 1: _facts(1)}
    two[0]["variables"]["NCCL_P2P_DISABLE"], two[1]["variables"]["NCCL_P2P_DISABLE"] = "0", "1"
    assert [found.where for found in odd_ranks(two)] == ["NCCL_P2P_DISABLE"]


def test_devices_given_out_in_pairs_are_no_difference_and_shared_ones_are_compared(
    ranks: dict[int, dict[str, Any]],
) -> None:
    for rank in ranks:
        ranks[rank]["variables"]["CUDA_VISIBLE_DEVICES"] = f"{rank % 4 * 2},{rank % 4 * 2 + 1}"
    assert odd_ranks(ranks) == []
    for rank in ranks:
        ranks[rank]["variables"]["CUDA_VISIBLE_DEVICES"] = "0,1,2,3"
    assert odd_ranks(ranks) == []
    ranks[3]["variables"]["CUDA_VISIBLE_DEVICES"] = "0,1,3,2"
    assert [(found.where, found.ranks) for found in odd_ranks(ranks)] == [("CUDA_VISIBLE_DEVICES", (3,))]


def test_a_section_that_was_left_out_is_not_compared(ranks: dict[int, dict[str, Any]]) -> None:
    for section in ("packages", "infiniband", "variables", "nccl_files"):
        del ranks[6][section]
    assert odd_ranks(ranks) == []


@pytest.mark.parametrize("junk", [None, 3, "x", [], [[]], {"a": {}}, {"ports": 3, "devices": [3], "cards": "x"}, True])
def test_facts_of_any_shape_are_taken(ranks: dict[int, dict[str, Any]], junk: object) -> None:
    for section in list(ranks[0]):
        broken = copy.deepcopy(ranks)
        broken[4][section] = junk
        odd_ranks(broken)
    odd_ranks({0: {}, 1: {"variables": {"NCCL_DEBUG": junk}, "host": {"name": junk}}})


def test_a_thousand_ranks_that_all_differ_are_told_in_few_words() -> None:
    many = {rank: _facts(rank, ranks_a_host=8) for rank in range(1024)}
    for rank in many:
        many[rank]["variables"] |= {f"NCCL_{number}": str(rank) * 300 for number in range(120)}
    found = odd_ranks(many)
    assert len(found) == 100
    assert all(len(each.what) < 2_000 for each in found)
