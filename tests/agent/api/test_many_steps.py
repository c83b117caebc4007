"""A long loop leaves nothing behind: memory, threads, handles and objects of ours are as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.server.process import Run

RSS_BYTES = 8 << 20
"""The allocator keeps what a batch took while it was encoded: 0.4 MiB were seen. Were the cells of a tensor kept, 9,000
steps of some 30 tensors, 5 float64 each, would be 10 MiB; were objects kept for them, ten times that."""

ATTACH_BYTES = 4 << 20
"""Less than 0.1 MiB was seen, on a busy machine too. An agent's step buffer of 64 rows alone is 100 KB here: of 50
agents that are kept, 5 MB."""

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux' /proc")


def looped(run: Run, loop: str, count: int, warm_count: int) -> dict[str, Any]:
    done = forked.rank.run(
        "-m", "tests.agent.api.many_steps", run.server.url, run.name, loop, str(count), str(warm_count)
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("steps", "warm_steps"), [(300, 100), pytest.param(10_000, 1_000, marks=pytest.mark.slow)])
def test_a_loop_of_many_steps(run: Run, steps: int, warm_steps: int) -> None:
    found = looped(run, "long", steps, warm_steps)
    assert found["after"] == found["before"]
    stats = found["stats"]
    assert (stats["step"], stats["dropped"], stats["faults"]) == (steps, {}, {})
    assert run.get()["last_step"] == steps - 1, "it was recorded to its end"
    assert found["grown_bytes"] < RSS_BYTES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "warm_count", "most_bytes"),
    [
        (20, 10, 4 * ATTACH_BYTES),
        pytest.param(110, 60, ATTACH_BYTES, marks=pytest.mark.slow),
        pytest.param(250, 60, ATTACH_BYTES, marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
    ],
)
@pytest.mark.parametrize("loop", ["new_models", pytest.param("same_model", marks=pytest.mark.slow)])
def test_attached_and_detached_again_and_again(
    run: Run, loop: str, count: int, warm_count: int, most_bytes: int
) -> None:
    found = looped(run, loop, count, warm_count)
    assert found["after"] == found["before"]
    assert found["grown_bytes"] < most_bytes
