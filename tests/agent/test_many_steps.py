"""A long loop leaves nothing behind: memory, threads, handles and objects of ours are as before."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rangewatch
from tests.server.conftest import Server

STEPS, WARM_STEPS = 10_000, 1_000
ATTACHES, WARM_ATTACHES = (250, 60) if os.environ.get("RANGEWATCH_SOAK") else (110, 60)

RSS_BYTES = 8 << 20
"""The allocator keeps what a batch took while it was encoded: 0.4 MiB were seen. Were the cells of a tensor kept, 9,000
steps of some 30 tensors, 5 float64 each, would be 10 MiB; were objects kept for them, ten times that."""

ATTACH_BYTES = 4 << 20
"""0 to 2 MiB were seen. An agent's step buffer of 64 rows alone is 100 KB here: of 50 agents that are kept, 5 MB."""

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux' /proc")


@pytest.fixture(autouse=True)
def no_hook_is_left() -> None:
    """Instead of the shared one, which keeps each agent to look at it afterwards."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A process of its own: what it keeps must not count as ours."""
    started = Server(str(tmp_path / "long.db"))
    yield started
    started.stop()


def rss_bytes() -> int:
    """Resident memory of this process, after what is garbage is gone."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def left() -> tuple[Counter[str], int, int, int]:
    """Objects of ours by class, open files, threads of Python and of the process."""
    gc.collect()
    ours = [type(each) for each in gc.get_objects() if str(type(each).__module__).startswith("rangewatch.")]
    files, tasks = (sum(1 for _ in Path(f"/proc/self/{folder}").iterdir()) for folder in ("fd", "task"))
    return Counter(each.__qualname__ for each in ours), files, threading.active_count(), tasks


def net() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.ReLU())])
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, handle: rangewatch.Handle, steps: int) -> None:
    x = torch.ones(2, 8)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        handle.log(loss=loss)
        optimizer.step()


def loop(server: Server, run: str, warm_steps: int, steps: int) -> tuple[dict[str, Any], int]:
    """What the agent says of itself before the end, and the bytes that memory grew after the first `warm_steps`."""
    options: Any = {"level": "frames", "ship_interval_s": 0.05, "budget_percent": 100}
    model, optimizer = net()
    with rangewatch.attach(model, optimizer, url=server.url, run=run, **options) as handle:
        train(model, optimizer, handle, warm_steps)
        warm_bytes = rss_bytes()
        train(model, optimizer, handle, steps - warm_steps)
        return handle.stats(), rss_bytes() - warm_bytes


def test_a_loop_of_many_steps(server: Server) -> None:
    loop(server, "warm-up", 10, 10)
    before = left()
    stats, grown_bytes = loop(server, "long", WARM_STEPS, STEPS)
    assert left() == before
    assert (stats["step"], stats["dropped"], stats["faults"]) == (STEPS, {}, {})
    runs = {run["name"]: run["last_step"] for run in server.get("/api/v1/runs")["runs"]}
    assert runs["long"] == STEPS - 1, "it was recorded to its end"
    assert grown_bytes < RSS_BYTES


@pytest.mark.parametrize("same_model", [True, False])
def test_attached_and_detached_again_and_again(server: Server, same_model: bool) -> None:
    model, optimizer = net()
    hooks = [len(module._forward_hooks) for module in model.modules()]

    def attach(count: int) -> None:
        for _ in range(count):
            pair = (model, optimizer) if same_model else net()
            with rangewatch.attach(*pair, url=server.url, run="again", level="frames") as handle:
                train(*pair, handle, 2)

    attach(WARM_ATTACHES)
    before, warm_bytes = left(), rss_bytes()
    attach(ATTACHES - WARM_ATTACHES)
    assert left() == before
    assert rss_bytes() - warm_bytes < ATTACH_BYTES
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
