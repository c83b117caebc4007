"""Loops that should leave nothing behind, each in a process of its own.

    python -m tests.agent.api.many_steps URL RUN LOOP COUNT WARM_COUNT

So what is measured does not depend on what ran before. A process that has run other tests has holes in its heap, of
megabytes whose pages come and go, and Python's own table of strings grows by 3.7 MiB at once; neither is ours.
LOOP is `long`, which takes COUNT steps, or `same_model` or `new_models`, which attach COUNT times. Prints JSON: what is
there `before` and `after`, and by how many bytes the process has grown after the first WARM_COUNT.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn

import rangewatch
from rangewatch.core.guard import Guard

M_ARENA_MAX = -8


def main(url: str, run: str, loop: str, count: str, warm_count: str) -> None:
    Guard.fatal = True
    one_arena()
    counts = int(count), int(warm_count)
    found = many_steps(url, run, *counts) if loop == "long" else many_attaches(url, run, *counts, loop == "same_model")
    sys.stdout.write(json.dumps(found) + "\n")


def one_arena() -> None:
    """Every thread allocates where all do, where the C library is glibc.

    An agent's threads take an arena of their own each time that they meet another in one, and what an arena has touched
    stays: on a busy machine 4 to 17 MiB in 50 agents that leave nothing behind.
    """
    glibc("mallopt", M_ARENA_MAX, 1)


def glibc(function: str, *given: int) -> None:
    """Call it, where that is the C library."""
    with contextlib.suppress(OSError, AttributeError):
        getattr(ctypes.CDLL("libc.so.6"), function)(*given)


def many_steps(url: str, run: str, count: int, warm_count: int) -> dict[str, Any]:
    """`stats` is what the agent says of itself before the end."""
    run_of(url, f"{run}, warm-up", 10, 10)
    before = settled()
    stats, grown_bytes = run_of(url, run, warm_count, count)
    return {"before": before, "after": settled(before), "grown_bytes": grown_bytes, "stats": stats}


def many_attaches(url: str, run: str, count: int, warm_count: int, same_model: bool) -> dict[str, Any]:
    """What is there includes the hooks of a model."""
    model, optimizer = net()

    def attach(count: int) -> None:
        for _ in range(count):
            pair = (model, optimizer) if same_model else net()
            with rangewatch.attach(*pair, url=url, run=run, level="frames") as handle:
                train(*pair, handle, 2)

    hooks = hooks_of(model)
    attach(warm_count)
    before, warm_bytes = settled(), rss_bytes()
    attach(count - warm_count)
    after, grown_bytes = settled(before), rss_bytes() - warm_bytes
    return {"before": [before, hooks], "after": [after, hooks_of(model)], "grown_bytes": grown_bytes}


def run_of(url: str, run: str, warm_steps: int, steps: int) -> tuple[dict[str, Any], int]:
    """What the agent says of itself before the end, and the bytes that memory grew after the first `warm_steps`."""
    options: Any = {"level": "frames", "ship_interval_s": 0.05, "budget_percent": 100}
    model, optimizer = net()
    with rangewatch.attach(model, optimizer, url=url, run=run, **options) as handle:
        train(model, optimizer, handle, warm_steps)
        warm_bytes = rss_bytes()
        train(model, optimizer, handle, steps - warm_steps)
        return handle.stats(), rss_bytes() - warm_bytes


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


def hooks_of(model: nn.Module) -> list[int]:
    """How many each module has."""
    return [len(module._forward_hooks) for module in model.modules()]


def rss_bytes() -> int:
    """Resident memory of this process, after what is garbage is gone, and what the C library keeps of it for later: on
    a busy machine, where batches wait, that is megabytes which nobody holds.
    """
    gc.collect()
    glibc("malloc_trim", 0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def settled(wanted: list[Any] | None = None) -> list[Any]:
    """What is left once that is `wanted`, or stays the same for a while: threads that are about to end do so first."""
    seen = [left()]
    while seen[-1] != wanted and len(seen) < 300:
        if wanted is None and seen[-5:] == [seen[-1]] * 5:
            break
        time.sleep(0.02)
        seen.append(left())
    return seen[-1]


def left() -> list[Any]:
    """Objects of ours by class, open files, threads of Python and of the process."""
    gc.collect()
    ours = [type(each) for each in gc.get_objects() if str(type(each).__module__).startswith("rangewatch.")]
    files, tasks = (sum(1 for _ in Path(f"/proc/self/{folder}").iterdir()) for folder in ("fd", "task"))
    return [Counter(each.__qualname__ for each in ours), files, threading.active_count(), tasks]


if __name__ == "__main__":
    main(*sys.argv[1:])
