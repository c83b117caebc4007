"""A long loop leaves nothing behind: memory, threads, handles and objects of ours are as before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.agent.many_steps import STEPS
from tests.server.process import Server

RSS_BYTES = 8 << 20
"""The allocator keeps what a batch took while it was encoded: 0.4 MiB were seen. Were the cells of a tensor kept, 9,000
steps of some 30 tensors, 5 float64 each, would be 10 MiB; were objects kept for them, ten times that."""

ATTACH_BYTES = 4 << 20
"""Less than 0.1 MiB was seen, on a busy machine too. An agent's step buffer of 64 rows alone is 100 KB here: of 50
agents that are kept, 5 MB."""

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux' /proc")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(str(tmp_path / "long.db"))
    yield started
    started.stop()


def looped(server: Server, loop: str) -> dict[str, Any]:
    done = forked.rank.run("-m", "tests.agent.many_steps", server.url, loop)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_loop_of_many_steps(server: Server) -> None:
    found = looped(server, "long")
    assert found["after"] == found["before"]
    stats = found["stats"]
    assert (stats["step"], stats["dropped"], stats["faults"]) == (STEPS, {}, {})
    runs = {run["name"]: run["last_step"] for run in server.get("/api/v1/runs")["runs"]}
    assert runs["long"] == STEPS - 1, "it was recorded to its end"
    assert found["grown_bytes"] < RSS_BYTES


@pytest.mark.parametrize("loop", ["same_model", "new_models"])
def test_attached_and_detached_again_and_again(server: Server, loop: str) -> None:
    found = looped(server, loop)
    assert found["after"] == found["before"]
    assert found["grown_bytes"] < ATTACH_BYTES
