"""One of some gloo ranks that train, once for each run: `ranks.py URL RUN...`.

RUN is "LAYOUT BUG SEED PRECISION"; BUG is "none" for a healthy training. Each is trained with the agent alone.
"""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import rangewatch

sys.path.insert(0, str(Path(__file__).parents[1]))

from mesh_trainings.cases import BY_NAME
from mesh_trainings.layouts import LAYOUTS, Training
from mesh_trainings.planted import planted

STEPS = 14


def main(url: str, *runs: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=2))
    for run in runs:
        layout, bug, seed, precision = run.split()
        train(url, run, layout, bug, int(seed), precision)
    dist.barrier()  # the first rank holds the store


def train(url: str, run: str, layout: str, bug: str, seed: int, precision: str) -> None:
    """A healthy one also without the agent: it may add no collective."""
    counts = [trained(url, run, layout, bug, seed, precision, is_watched=True)]
    if bug == "none":
        counts.append(trained(url, run, layout, bug, seed, precision, is_watched=False))
    assert len(set(counts)) == 1, f"{run}: {counts} collectives with and without the agent"


def trained(url: str, run: str, layout: str, bug: str, seed: int, precision: str, *, is_watched: bool) -> int:
    """How many collectives it made."""
    kind, build = LAYOUTS[layout]
    since, rank = planted(seed, dist.get_world_size())
    case = BY_NAME.get(f"{layout}/{bug}")
    torch.manual_seed(seed)
    training: Training = build(kind(bug, 0 if case and case.is_from_start else since, rank, seed, precision))
    handle = rangewatch.attach(
        training.model, training.optimizer, scaler=training.scaler, url=url, run=run, replica_every=1,
        kinds=["grad", "reduced_grad"], quiet=True, enabled=is_watched, **training.attach,
    )  # fmt: skip
    with handle, CountCollectives() as collectives:
        for _ in range(STEPS):
            training.train_step()
            if training.logged:
                handle.log(**training.logged)
        faults = handle.stats().get("faults")
    assert not faults, faults
    return collectives.count


class CountCollectives(TorchDispatchMode):
    """Of those that this thread starts; DistributedDataParallel's are its own."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.namespace in {"c10d", "_c10d_functional"}
        return func(*args, **(kwargs or {}))


if __name__ == "__main__":
    main(*sys.argv[1:])
