"""Two gloo ranks: each records its own tensors and its own shards, in one run, and issues no collective."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import forked
from tests.agent.ingest_double import IngestDouble
from tests.agent.statistics.reference import Key, assert_recorded


def launch(url: str, folder: Path, worker: str = "hooks.ddp_worker", *arguments: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = []
    for rank in range(2):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        command = ["-m", f"tests.agent.{worker}", url, str(folder / f"{rank}.pt"), *arguments]
        ranks.append(forked.rank.start(*command, env=environment, stderr=subprocess.PIPE, text=True))
    for rank in ranks:
        _, errors = rank.communicate(timeout=100)
        assert rank.returncode == 0 and "rangewatch:" not in errors, errors


def test_two_ranks_before_and_after_wrapping(ingest: IngestDouble, tmp_path: Path) -> None:
    launch(ingest.url, tmp_path)
    infos = {(opening.info.run, opening.info.rank): opening.info for opening in ingest.openings}
    runs = {run for run, _ in infos}
    agreed = (runs - {"before"}).pop()
    assert set(infos) == {(run, rank) for run in ("before", agreed) for rank in range(2)}, "ranks share their run"
    assert agreed.startswith("script_of_rank_")
    assert {(info.rank, info.local_rank, info.world_size) for info in infos.values()} == {(0, 0, 2), (1, 1, 2)}
    everything = ingest.batches
    gradients = []
    for run, when in (("before", "before"), (agreed, "after")):
        ingest.batches = [batch for batch in everything if batch.run == run]
        for rank in range(2):
            kept = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
            for step in range(3):
                assert_recorded(recorded_but(ingest.tensors(rank), "reduced_grad"), step, kept[when, step])
            gradients.append(ingest.tensors(rank)["0.weight", "grad", 0][0]["amax"])
    assert gradients[0] != gradients[1], "gradients are local: before the reduction"
    assert gradients[:2] == gradients[2:], "wrapping before or after attach is the same"
    of_ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True)["after", 0] for rank in range(2)]
    reduced = torch.stack([kept["0.weight", "grad", 0][0] for kept in of_ranks]).mean(0)
    for rank in range(2):
        key = ("0.weight", "reduced_grad", 0)
        assert_recorded({key: ingest.tensors(rank)[key]}, 0, {key: [reduced]}, rtol=1e-6)


SHARDINGS = ("fsdp2", "fsdp1", "fsdp1_flat", "tensor_parallel")


@pytest.mark.parametrize("shardings", [("fsdp1_flat",), pytest.param(SHARDINGS, marks=pytest.mark.slow)])
def test_shards(ingest: IngestDouble, tmp_path: Path, shardings: tuple[str, ...]) -> None:
    launch(ingest.url, tmp_path, "hooks.sharded_worker", *shardings)  # asserts that training is as without the agent
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for sharding in shardings:
            assert_shards(sharding, recorded_of(ingest, sharding, rank), *found[sharding])


def assert_shards(sharding: str, recorded: dict[Key, Any], steps: list[dict[Key, Any]], unsharded: Any) -> None:
    unseen = {(f"{index}.down", "output", 0) for index in range(2) if sharding == "tensor_parallel"}
    assert set(recorded) == set(unsharded) - unseen, "names are those of the plain model"
    if sharding.startswith("fsdp1"):  # read before FSDP reduces and shards them
        steps = [{key: value for key, value in unsharded.items() if key[1] == "grad"}]
    for step, kept in enumerate(steps):
        assert_recorded({key: recorded[key] for key in kept}, step, kept, rtol=1e-5)
    if sharding != "tensor_parallel":
        assert_recorded(recorded_but(recorded, "grad"), 0, recorded_but(unsharded, "grad"), rtol=1e-5)
    else:
        assert recorded["0.up", "output", 0][0]["numel"] == unsharded["0.up", "output", 0][0].numel() / 2


def recorded_of(double: IngestDouble, run: str, rank: int) -> dict[Key, Any]:
    everything = double.batches
    double.batches = [batch for batch in everything if batch.run == run]
    recorded = double.tensors(rank)
    double.batches = everything
    return recorded


def recorded_but(cells: dict[Key, Any], kind: str) -> dict[Key, Any]:
    return {key: value for key, value in cells.items() if key[1] != kind}
