"""One of some gloo ranks that train, once for each run: `ranks.py URL RUN...`.

RUN is "LAYOUT BUG SEED PRECISION"; BUG is "none" for a healthy training. Each is trained with the agent alone.
"""

from __future__ import annotations

import datetime
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

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
    kind, build = LAYOUTS[layout]
    since, rank = planted(seed, dist.get_world_size())
    case = BY_NAME.get(f"{layout}/{bug}")
    torch.manual_seed(seed)
    training: Training = build(kind(bug, 0 if case and case.is_from_start else since, rank, seed, precision))
    handle = rangewatch.attach(
        training.model, training.optimizer, scaler=training.scaler, url=url, run=run, replica_every=1,
        kinds=["grad", "reduced_grad"], quiet=True, **training.attach,
    )  # fmt: skip
    with handle:
        for _ in range(STEPS):
            training.train_step()
            if training.logged:
                handle.log(**training.logged)
        faults = handle.stats().get("faults")
    assert not faults, faults


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException:
        traceback.print_exc()
        raise
