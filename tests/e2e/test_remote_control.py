"""A live two-rank training is asked for more: the command line, a real server, real gloo ranks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from rangewatch.commands.demo.children import free_port
from rangewatch.core.options import OBSERVED_KINDS
from rangewatch.wire.records import MOMENTS
from tests import forked
from tests.server.process import Run

STEPS = 100_000  # more than it will make: the test ends it
pytestmark = pytest.mark.slow


@pytest.fixture
def live(run: Run) -> Iterator[Run]:
    """Of two ranks, and goes on for as long as the test."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared |= {"RANGEWATCH_URL": run.server.url, "RANGEWATCH_RUN": run.name, "RANGEWATCH_SHIP_INTERVAL_S": "0.1"}
    command = ["-m", "rangewatch.commands.demo.train", "--steps", str(STEPS)]
    ranks = [
        forked.rank.start(
            *command, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    assert ranks[0].stdout is not None and ranks[0].stdout.readline(), "its first step"
    yield run
    for rank in ranks:
        rank.kill()
        rank.communicate()


def rangewatch(live: Run, command: str, *arguments: str, run: str = "") -> subprocess.CompletedProcess[str]:
    return forked.server.run("-m", "rangewatch", command, run or live.name, *arguments, "--url", live.server.url)


def test_a_trace_and_a_level(live: Run) -> None:
    traced = rangewatch(live, "trace", "--steps", "2", "--module", "blocks.1*")
    assert traced.returncode == 0, traced.stderr
    states = live.get("/commands")["commands"][0]["states"]
    steps = {each["rank"]: each["last_step"] for each in states}  # each begins at its own next step
    for rank in (0, 1):
        frames = live.get(f"/step?step={steps[rank]}&rank={rank}")["frames"]
        inside = {frame["kind"] for frame in frames if frame["fqn"].startswith("blocks.1")}
        assert inside >= set(OBSERVED_KINDS) - {"update", "reduced_grad", *MOMENTS}, "a skipped step has no update"
        assert not any(frame["kind"] == "input" for frame in frames if frame["fqn"].startswith("blocks.0"))
        assert all(frame["full"] for frame in frames if "attention logits" not in frame["fqn"])
    report = rangewatch(live, "report", "--step", str(steps[0]), "--frames", "300").stdout
    assert " input[0]" in report and " weight\n" in report

    lowered = rangewatch(live, "level", "grads")
    assert lowered.returncode == 0, lowered.stderr
    assert rangewatch(live, "trace", "--module", "nowhere").returncode == 1
    assert rangewatch(live, "trace", run="gone").returncode == 2
