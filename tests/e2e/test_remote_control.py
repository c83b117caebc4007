"""A live two-rank training is asked for more: the command line, a real server, real gloo ranks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rangewatch.demo.children import free_port
from rangewatch.options import OBSERVED_KINDS
from tests import forked
from tests.server.process import Server

STEPS = 100_000  # more than it will make: the test ends it


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Server]:
    """A server, and a run `live` of two ranks that goes on for as long as the test."""
    server = Server(str(tmp_path / "a.db"))
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared |= {"RANGEWATCH_URL": server.url, "RANGEWATCH_RUN": "live", "RANGEWATCH_SHIP_INTERVAL_S": "0.1"}
    command = ["-m", "rangewatch.demo.train", "--steps", str(STEPS)]
    ranks = [
        forked.rank.start(
            *command, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    assert ranks[0].stdout is not None and ranks[0].stdout.readline(), "its first step"
    yield server
    for rank in ranks:
        rank.kill()
        rank.communicate()
    server.stop()


def rangewatch(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.server.run("-m", "rangewatch", *arguments, "--url", server.url)


def test_a_trace_and_a_level(live: Server) -> None:
    traced = rangewatch(live, "trace", "live", "--steps", "2", "--module", "blocks.1*")
    assert traced.returncode == 0, traced.stderr
    states = live.get("/api/v1/runs/1/commands")["commands"][0]["states"]
    steps = {each["rank"]: each["last_step"] for each in states}  # each begins at its own next step
    for rank in (0, 1):
        frames = live.get(f"/api/v1/runs/1/step?step={steps[rank]}&rank={rank}")["frames"]
        inside = {frame["kind"] for frame in frames if frame["fqn"].startswith("blocks.1")}
        assert inside >= set(OBSERVED_KINDS) - {"update", "reduced_grad"}, "a skipped step has no update"
        assert not any(frame["kind"] == "input" for frame in frames if frame["fqn"].startswith("blocks.0"))
        assert all(frame["full"] for frame in frames)
    report = rangewatch(live, "report", "live", "--step", str(steps[0]), "--frames", "300").stdout
    assert " input[0]" in report and " weight\n" in report

    lowered = rangewatch(live, "level", "live", "grads")
    assert lowered.returncode == 0, lowered.stderr
    assert rangewatch(live, "trace", "live", "--module", "nowhere").returncode == 1
    assert rangewatch(live, "trace", "gone").returncode == 2
