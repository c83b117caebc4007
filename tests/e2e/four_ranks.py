"""One of four gloo ranks that train a small DDP model, with trouble planted on rank 2.

    four_ranks.py URL TROUBLE [SEED...]

With seeds there is a run of `STEPS` steps for each, in which every rank is late now and then by chance; without, one
run that goes on until it is killed. A rank that stops prints when, in seconds since the epoch. TROUBLE may be two,
"backward, skip": late until it stops, at `LATE_STOP_AT`.
"""

from __future__ import annotations

import datetime
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import rangewatch

LATE_S = 0.03
STEPS = 80
NOISE_S = 0.001  # mean of what each rank is late by in a step, exponentially distributed
WIDTH, DEPTH = 64, 4
STOP_AT, LATE_STOP_AT = 30, 70  # the step at which a rank stops


class Rows(Dataset):  # type: ignore[type-arg]
    def __init__(self, late_s: float) -> None:
        self.late_s = late_s

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, place: int) -> torch.Tensor:
        if self.late_s and place % 8 == 0:
            time.sleep(self.late_s)
        return torch.full((WIDTH,), (place % 7) / 7.0)


class LateBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        time.sleep(LATE_S)
        return grad


class Model(nn.Module):
    def __init__(self, late_backward: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.late_backward = late_backward

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            values = torch.tanh(layer(values))
            if self.late_backward and number == DEPTH // 2:
                values = LateBackward.apply(values)
        return values


def main(url: str, trouble: str, *seeds: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=5))
    for seed in seeds or [""]:
        train(url, trouble, seed)
    dist.barrier()  # the first rank holds the store


def train(url: str, trouble: str, seed: str) -> None:
    rank, troubles = dist.get_rank(), trouble.split(", ")
    mine, chance = troubles if rank == 2 else [], random.Random(f"{seed}/{rank}")
    model = DistributedDataParallel(Model("backward" in mine), bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    run = f"{trouble} {seed}".strip()
    with rangewatch.attach(model, optimizer, url=url, run=run, ship_interval_s=0.2):
        for step, values in enumerate(itertools.islice(batches(mine), STEPS if seed else None)):
            if seed:
                time.sleep(chance.expovariate(1 / NOISE_S))
            loss = model(values).square().mean()
            if "before backward" in mine:
                time.sleep(LATE_S)
            loss.backward()
            if step == (LATE_STOP_AT if len(troubles) > 1 else STOP_AT) and mine:
                stop(mine[-1])
            if troubles[-1] in HANGS:
                dist.all_reduce(torch.ones(4 if "size" in mine and step == STOP_AT else 8))
            optimizer.step()
            optimizer.zero_grad()


HANGS = ("skip", "size", "SIGSTOP", "SIGKILL")


def batches(mine: list[str]) -> Iterator[torch.Tensor]:
    yield from DataLoader(Rows(LATE_S if "data loader" in mine else 0.0), batch_size=8)


def stop(trouble: str) -> None:
    """In the way that this trouble is; does nothing where a rank is only late."""
    print(time.time(), flush=True)
    if trouble == "skip":
        wait_elsewhere()
    elif trouble in ("SIGSTOP", "SIGKILL"):
        os.kill(os.getpid(), getattr(signal, trouble))


def wait_elsewhere() -> None:
    """Not in the collective that the others are in."""
    time.sleep(300)


if __name__ == "__main__":
    main(*sys.argv[1:])
