"""Four real ranks of a replicated model: of a flipped bit step, rank and parameter are named; healthy ones are silent.

A soak has twenty seeds.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tests import forked
from tests.e2e.replica_ranks import COMPARED, DIFFERENT, PARAMETERS, RANKS, STEPS, planted
from tests.server.process import Server

pytestmark = pytest.mark.timeout(1800 if os.environ.get("RANGEWATCH_SOAK") else 600)
WORKER = Path(__file__).with_name("replica_ranks.py")
SOAK = bool(os.environ.get("RANGEWATCH_SOAK"))
SEEDS = range(20) if SOAK else range(1)
ALIKE, OTHERS = (COMPARED, DIFFERENT) if SOAK else (COMPARED[:5], DIFFERENT[:2])


def train(url: str, *runs: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    usual = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(RANKS)}
    usual |= {"OMP_NUM_THREADS": "1", "RANGEWATCH_COLLECT": "environment"}
    ranks = [
        forked.rank.start(
            WORKER, url, *runs, env=usual | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, stderr=PIPE, text=True
        )
        for rank in range(RANKS)
    ]
    try:
        for rank in ranks:
            _, errors = rank.communicate()  # the test's own time limit ends it
            assert rank.returncode == 0, errors
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It has all the runs: most of their time is the ranks' start."""
    found = Server(str(tmp_path_factory.mktemp("replicas") / "a.db"))
    try:
        train(found.url, *(f"flip {seed}" for seed in SEEDS), *(f"{what} 1" for what in (*ALIKE, *OTHERS)))
        yield found
    finally:
        found.stop()


def number_of(server: Server, run: str) -> int:
    return next(int(each["id"]) for each in server.get("/api/v1/runs")["runs"] if each["name"] == run)


def findings(server: Server, run: str) -> list[dict[str, Any]]:
    found = server.get(f"/api/v1/runs/{number_of(server, run)}/diagnosis")
    assert found["stop"] >= STEPS and not found["failed"], found
    return [each for each in found["findings"] if each["rule"] == "replica_mismatch"]


def parameters_read(server: Server, run: str) -> int:
    """How many parameters of rank 0 have a checksum at any step."""
    query = "axes=step,tensor&rank=0&kind=grad&statistic=checksum_max"
    found = server.get(f"/api/v1/runs/{number_of(server, run)}/slice?{query}")
    return sum(any(each) for each in found["values"]["checksum_max"])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_flipped_bit_is_named(server: Server, seed: int) -> None:
    truth, found = planted(str(seed)), findings(server, f"flip {seed}")
    named = [(each["rank"], each["step"], each["tensor"], each["severity"]) for each in found]
    assert named == [(truth.rank, truth.step, truth.parameter, "critical")], (truth, found)


@pytest.mark.parametrize("what", ALIKE)
def test_healthy_replicas_are_silent(server: Server, what: str) -> None:
    assert findings(server, f"{what} 1") == []
    assert parameters_read(server, f"{what} 1") == len(PARAMETERS) - (2 if what == "ignored" else 0)


@pytest.mark.parametrize("what", OTHERS)
def test_what_need_not_be_alike_is_not_compared(server: Server, what: str) -> None:
    assert findings(server, f"{what} 1") == []
    assert parameters_read(server, f"{what} 1") == 0
