"""Collectives of three real gloo ranks: what is recorded, and that training is what it was without."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from rangewatch.core.guard import Guard
from tests.agent.collectors.ranks import Watched, run_ranks

RANKS, SLOW, STEPS, GROUPS = 3, 2, 4, 8


def scenario(rank: int, folder: Path) -> dict[str, Any]:
    plain, error = train(rank), errors_of_the_user(rank)
    watched = Watched(rank, RANKS)
    watched.start()
    found: dict[str, Any] = {
        "error without us": error,
        "rung": watched.collector.timing_source,
        "plain": plain,
        "watched": train(rank, watched),
    }
    for where in ("before", "inside"):
        watched.given.clear()
        train(rank, watched, where)
        found[where] = watched.rows()
    found["exposed_s"] = watched.collector.exposed_s(watched.step)
    found["parameters"] = buckets_sent(watched)
    for name, part in PARTS.items():
        watched.collect()
        watched.given.clear()
        found[name] = part(rank, watched)
        found[f"{name} rows"] = watched.rows()
    found["events"] = watched.events
    watched.stop()
    dist.all_reduce(torch.ones(3))
    found["after the end"] = len(watched.collector.recorder.take())
    return found


def model_of(seed: int = 0) -> DistributedDataParallel:
    torch.manual_seed(seed)
    layers = [nn.Linear(80, 80) for _ in range(6)]
    return DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.06)


def train(rank: int, watched: Watched | None = None, slow: str = "") -> list[torch.Tensor]:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    torch.manual_seed(10 + rank)
    for step in range(STEPS):
        if watched is not None:
            watched.step = step
            watched.collect()
        if slow == "before" and rank == SLOW:
            time.sleep(0.05)
        output = model(torch.randn(4, 80))
        if slow == "inside" and rank == SLOW:
            output.register_hook(late)
        output.pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if watched is not None:
        dist.barrier()
        watched.collect()
        while watched.collector._open:  # the thread that tells of their ends may need a moment
            time.sleep(0.005)
            watched.collect()
    return [parameter.detach().clone() for parameter in model.parameters()]


def late(gradient: torch.Tensor) -> None:
    time.sleep(0.05)


def buckets_sent(watched: Watched) -> dict[str, list[str]]:
    return next((each.about["buckets"] for each in reversed(watched.given) if "buckets" in each.about), {})


def users_own_hook(rank: int, watched: Watched) -> list[torch.Tensor]:
    """Registered after the agent is there, which torch allows once only."""
    model = model_of()
    model.register_comm_hook(None, allreduce_hook)
    torch.manual_seed(10 + rank)
    model(torch.randn(4, 80)).pow(2).mean().backward()
    watched.collect()
    return [parameter.grad.clone() for parameter in model.parameters()]


def new_groups(rank: int, watched: Watched) -> int:
    for _ in range(GROUPS):
        group = dist.new_group([0, 1])
        if rank < 2:
            dist.all_reduce(torch.ones(7), group=group)
            dist.destroy_process_group(group)
    del group
    watched.collect()
    return len(watched.collector.recorder.groups.all())


def every_kind(rank: int, watched: Watched) -> torch.Tensor:
    ones, zeros = torch.ones(6), torch.zeros(6 * RANKS)
    dist.all_gather_into_tensor(zeros, ones * rank)
    dist.all_gather([torch.zeros(6) for _ in range(RANKS)], ones)
    dist.reduce_scatter_tensor(torch.zeros(2), ones)
    dist.all_to_all_single(torch.zeros(6), ones)
    dist.broadcast(ones.half(), 1)
    dist.reduce(ones, 0)
    dist.gather(ones, [torch.zeros(6) for _ in range(RANKS)] if rank == 0 else None)
    dist.scatter(torch.zeros(6), [ones] * RANKS if rank == 0 else None)
    if rank < 2:
        (dist.send if rank == 0 else dist.recv)(torch.ones(5), 1 - rank)
    dist.all_reduce(torch.ones(2, 3, dtype=torch.int64), async_op=True).wait()
    dist.barrier()
    time.sleep(0.2)
    watched.collect()
    return zeros


def errors_of_the_user(rank: int, watched: Watched | None = None) -> list[str]:
    found = []
    for values, operation in ((torch.ones(3).to_sparse(), dist.ReduceOp.MAX), (torch.ones(3), dist.ReduceOp.BAND)):
        try:
            dist.all_reduce(values, op=operation)
        except Exception as error:
            found.append(repr(error))
    if watched is not None:
        watched.collect()
    return found


def faults_of_ours(rank: int, watched: Watched) -> list[float]:
    """From here on nothing is recorded, and the results are right."""
    Guard.fatal = False
    watched.collector.recorder.groups.of = None  # type: ignore[assignment]
    results = []
    for _ in range(10):
        values = torch.ones(3)
        dist.all_reduce(values)
        results.append(float(values[0]))
    watched.collect()
    Guard.fatal = True
    return results


PARTS = {
    "own hook": users_own_hook,
    "new groups": new_groups,
    "kinds": every_kind,
    "error": errors_of_the_user,
    "faults": faults_of_ours,
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(scenario, RANKS, tmp_path_factory.mktemp("ranks"))


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    group = row["group"]
    return group["name"], group["hash"], group["instance"], row["sequence"], row["op"], row["bytes"], row["dtype"]


def test_training_is_bit_equal(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert found["rung"] in ("hooks", "wrapped")
        assert all(torch.equal(one, other) for one, other in zip(found["plain"], found["watched"], strict=True))


def test_every_rank_has_the_same_keys(ranks: list[dict[str, Any]]) -> None:
    keys = [sorted(key(row) for row in found["before"]) for found in ranks]  # they come as they end
    assert keys == [keys[0]] * RANKS
    sequences = sorted(row["sequence"] for row in ranks[0]["before"])
    assert sequences == list(range(int(sequences[0]), int(sequences[0]) + len(sequences))), "none is missing"
    assert all(found["before"][0]["group"]["ranks"] == list(range(RANKS)) for found in ranks)


def test_buckets_have_their_parameters(ranks: list[dict[str, Any]]) -> None:
    rows = [row for row in ranks[0]["inside"] if row["op"] == "all_reduce" and row["step"] == STEPS - 1]
    assert [row["bucket"] for row in rows] == list(range(len(rows))) and len(rows) > 1
    names = ranks[0]["parameters"]
    assert sorted(name for held in names.values() for name in held) == sorted(
        f"{layer}.{kind}" for layer in range(6) for kind in ("weight", "bias")
    )
    assert "5.bias" in names["0"], "the first bucket is that of the last layer"
    assert rows[0]["bytes"] == sum(4 * (6400 if name.endswith("weight") else 80) for name in names["0"])


@pytest.mark.parametrize("where", ["before", "inside"])
def test_who_is_waited_for(ranks: list[dict[str, Any]], where: str) -> None:
    waited_s = [
        sum(row["duration_s"] for row in found[where] if row["bucket"] == 0 and row["step"] >= 2) for found in ranks
    ]
    assert waited_s.index(min(waited_s)) == SLOW, waited_s


def test_a_users_hook_takes_the_place_it_asks_for(ranks: list[dict[str, Any]]) -> None:
    assert all(
        torch.equal(one, other)
        for found in ranks
        for one, other in zip(found["own hook"], ranks[0]["own hook"], strict=True)
    )
    assert [row["op"] for row in ranks[0]["own hook rows"]].count("all_reduce") >= 1


def test_new_groups_are_recorded_and_let_go(ranks: list[dict[str, Any]]) -> None:
    rows = [row for row in ranks[0]["new groups rows"] if row["group"]["ranks"] == [0, 1]]
    assert len({row["group"]["name"] for row in rows}) == GROUPS
    assert not [row for row in ranks[2]["new groups rows"] if row["group"]["ranks"] == [0, 1]]
    assert ranks[0]["new groups"] <= 3, "destroyed ones are forgotten"


def test_every_kind_and_its_size(ranks: list[dict[str, Any]]) -> None:
    assert torch.equal(ranks[0]["kinds"], torch.arange(RANKS).repeat_interleave(6).float())
    rows = {row["op"]: row for row in ranks[0]["kinds rows"]}
    sizes = {op: row["bytes"] for op, row in rows.items()}
    assert sizes == {
        "all_gather": 72.0, "reduce_scatter": 24.0, "all_to_all": 24.0, "broadcast": 12.0, "reduce": 24.0,
        "gather": 24.0, "scatter": 24.0, "send": 20.0, "all_reduce": 48.0, "barrier": 0.0,
    }  # fmt: skip
    assert rows["broadcast"]["dtype"] == "float16" and rows["all_reduce"]["dtype"] == "int64"
    symmetric = {op for op, row in rows.items() if row["is_symmetric"]}
    assert symmetric == {"all_gather", "reduce_scatter", "all_reduce", "barrier"}
    sequences = [[row["sequence"] for row in found["kinds rows"][-2:]] for found in ranks]
    assert all(each == sequences[0] for each in sequences), "though two of them have sent and received"
    assert math.isnan(rows["send"]["sequence"]) and math.isnan(rows["send"]["duration_s"])
    untimed = {op for op, row in rows.items() if math.isnan(row["duration_s"])}
    assert untimed == {"send", "reduce_scatter"}, "gloo's reduce_scatter has no future"
    assert rows["all_reduce"]["is_async"] and not rows["broadcast"]["is_async"]


def test_exposed_communication_is_known(ranks: list[dict[str, Any]]) -> None:
    assert all(found["exposed_s"] > 0 for found in ranks)


def test_the_users_errors_are_the_users(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert found["error"] == found["error without us"] and len(found["error"]) == 2
        assert [row["has_failed"] for row in found["error rows"]] == [1.0, 1.0]


def test_our_faults_do_not_reach_the_collective(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert found["faults"] == [float(RANKS)] * 10
        assert found["faults rows"] == []
        rungs = [data["rung"] for kind, _, data in found["events"] if kind == "collectives"]
        assert rungs == [found["rung"], "step_level"], "it gives up, and says so"
        assert found["after the end"] == 0
