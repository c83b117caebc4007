"""Step time under every trouble of the server against no agent at all, in one process: the second half of server_away.

A round is a window of steps without the agent and one with it, in random order, so that drift of the machine cancels.
In the window the server is in its trouble from the first step on; afterwards it is well, and asked what it has.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import rangewatch
from servers.trouble_server import MODES, TroubleServer

SKIPPED_STEPS = 5  # of a window: cold caches, and what attaching costs


def measure(steps: int, rounds: int, modes: tuple[str, ...] = MODES) -> list[dict[str, Any]]:
    """A row of figures for each mode."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    server = TroubleServer()
    training = Training()
    training.window(SKIPPED_STEPS + 10)
    with tempfile.TemporaryDirectory() as folder:
        rows = [_mode(server, training, name, steps, rounds, Path(folder)) for name in modes]
    server.stop()
    return rows


class Training:
    """32 layers of 256 with GELU and AdamW: 160 tensors, and some 50 ms a step on one core."""

    def __init__(self) -> None:
        self.model = nn.Sequential(*[layer for _ in range(32) for layer in (nn.Linear(256, 256), nn.GELU())])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def window(self, steps: int, handle: Any = None) -> list[float]:
        """Seconds of each step."""
        times = []
        for _ in range(steps):
            began_s = time.perf_counter()
            self.optimizer.zero_grad()
            loss = self.model(torch.randn(256, 256)).square().mean()
            loss.backward()
            self.optimizer.step()
            if handle is not None:
                handle.log(loss=loss)
            times.append(time.perf_counter() - began_s)
        return times[SKIPPED_STEPS:]


def _mode(
    server: TroubleServer, training: Training, name: str, steps: int, rounds: int, folder: Path
) -> dict[str, Any]:
    ratios, row = [], {"mode": name, "missing": 0, "refused": 0, "spool_bytes": 0, "rss_growth_mib": 0.0}
    for number in range(rounds):
        without: list[float] = []
        if is_plain_first := random.random() < 0.5:
            without = training.window(steps)
        within = _watched(server, training, f"{name}-{number}", name, steps, folder, row)
        without = without if is_plain_first else training.window(steps)
        ratios.append(statistics.median(within) / statistics.median(without))
    ordered = sorted(ratios)
    return row | {"ratio": statistics.median(ratios), "low": ordered[0], "high": ordered[-1]}


def _watched(
    server: TroubleServer, training: Training, run: str, mode: str, steps: int, folder: Path, row: dict[str, Any]
) -> list[float]:
    before = rss_mib()
    server.mode(mode)
    handle = rangewatch.attach(
        training.model, training.optimizer, url=server.url, run=run, budget_percent=100,
        spool_dir=str(folder), flush_timeout_s=120,
    )  # fmt: skip
    times = training.window(steps, handle)
    row["spool_bytes"] = max(row["spool_bytes"], bytes_in(folder))
    row["rss_growth_mib"] = max(row["rss_growth_mib"], rss_mib() - before)
    server.mode("there")
    sender = handle._agent._sender
    while sender.is_behind:  # a rank that ends while its server is away leaves the rest to `rangewatch replay`
        time.sleep(0.05)
    dropped = handle.stats()["dropped"]
    handle.detach()
    found = server.reported(run)
    assert found["finished"], "the end did not arrive"
    row["refused"] += dropped.get("server_rejected", 0)
    row["missing"] += 0 if dropped.get("server_rejected") else steps - int(found["calls"])
    row["dropped"] = {**row.get("dropped", {}), **dropped}
    return times


def rss_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) / 256


def bytes_in(folder: Path) -> int:
    total = 0
    for each in folder.rglob("*"):
        try:
            total += each.stat().st_size if each.is_file() else 0
        except FileNotFoundError:  # merged meanwhile
            continue
    return total


def show(rows: list[dict[str, Any]]) -> None:
    """A table for a person."""
    print(f"{'server':10} {'with / without agent':>28} {'spool':>9} {'memory':>9}  afterwards")
    for row in rows:
        ratio = f"{row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        missing = f"{row['missing']} of its steps missing, {row['refused']} batches refused for good"
        sizes = f"{row['spool_bytes'] / 1e6:6.2f} MB {row['rss_growth_mib']:5.1f} MiB"
        print(f"{row['mode']:10} {ratio:>28} {sizes}  {missing}")
