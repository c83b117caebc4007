"""The server is killed during a real two-rank training and started again: no step is missing, none is doubled."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rangewatch_server.numerics.pyramid import RANGES, SERIES_PART
from rangewatch_server.query.reader import Queries
from rangewatch_server.store.engine import open_database
from tests import forked
from tests.server.process import Server

STEPS = 24


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def start_ranks(url: str, run: str) -> list[forked.Forked]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        master = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": master}
    shared |= {"RANGEWATCH_URL": url, "RANGEWATCH_RUN": run, "RANGEWATCH_SHIP_INTERVAL_S": "0.2"}
    command = ["-m", "rangewatch.commands.demo.train", "--steps", str(STEPS)]
    return [
        forked.rank.start(
            *command, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip


@pytest.fixture
def trained(tmp_path: Path, port: int) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """A training whose server is killed a third of the way through and comes back some steps later."""
    db = tmp_path / "a.db"
    server = Server(str(db), "--port", str(port))
    ranks = start_ranks(server.url, "restarted")
    assert ranks[0].stdout is not None
    steps = [json.loads(line) for line in (ranks[0].stdout.readline() for _ in range(STEPS // 3)) if line]
    server.kill()
    steps += [json.loads(ranks[0].stdout.readline()) for _ in range(STEPS // 3)]
    server = Server(str(db), "--port", str(port))
    outputs = [rank.communicate(timeout=90) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs[0][1][-2000:]
    deadline = time.monotonic() + 60
    while server.get("/api/v1/runs")["runs"][0]["state"] != "finished" and time.monotonic() < deadline:
        time.sleep(0.02)
    steps += [json.loads(line) for line in outputs[0][0].splitlines()]
    server.stop()
    yield db, steps


@pytest.mark.slow
def test_no_step_is_missing_and_none_is_doubled(trained: tuple[Path, list[dict[str, Any]]]) -> None:
    db, steps = trained
    assert [step["step"] for step in steps] == list(range(STEPS)), "training went on while the server was away"
    engines = open_database(f"sqlite:///{db}")
    with Queries(engines.reader, live_s=15).read() as reader:
        run = reader.run(1)
        assert run is not None
        assert {rank: found.row.state for rank, found in run.ranks.items()} == {0: "finished", 1: "finished"}
        for rank in (0, 1):
            calls = run.slice(RANGES, [rank], 0, 0, STEPS, ["call_count"]).columns["call_count"]
            assert calls.shape == (224, STEPS), "200 and the logits of 24 heads"
            assert (calls == 1).all(), "every tensor exactly once a step"
            names = run.names().series
            counts = run.slice(SERIES_PART, [rank], 0, 0, STEPS, ["count", "last"], np.arange(len(names)))
            assert (counts.columns["count"][names["loss"]] == 1).all()
        logged = counts.columns["last"][names["loss"]]  # rank 1's; the ranks read different text
        assert np.isfinite(logged).all()
        mine = run.slice(SERIES_PART, [0], 0, 0, STEPS, ["last"], np.array([names["loss"]])).columns["last"][0]
        assert mine.tolist() == [step["loss"] for step in steps]
        assert run.newest_events(["dropped"]) == []
    engines.dispose()
