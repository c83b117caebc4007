"""One of four gloo ranks that train a small replicated model, once for each run.

    replica_ranks.py URL RUN...

RUN is "WHAT SEED": `flip`, where one bit of one parameter is flipped on one rank, or one of `COMPARED` or `DIFFERENT`.
"""

from __future__ import annotations

import contextlib
import datetime
import random
import sys
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel

import rangewatch

RANKS, STEPS, WIDTH = 4, 30, 24
COMPARED = (
    "usual", "restart", "accumulation", "unused parameters", "ignored", "bucket views", "inner model", "merged",
    "not wrapped", "on a device", "by hand",
)  # fmt: skip
DIFFERENT = ("two groups", "local steps", "uneven inputs", "no reduction")
DIFFERENT_LATER = ("by hand, then alone", "by hand in turn")
"""The same of those that are compared at first: the loop's own reductions show that ranks are to be alike."""
"""What the ranks of these hold is not alike, and need not be."""


class Flip(NamedTuple):
    """Where a seed has its bit flipped: `element` counts from 0 to 1, `place` is in the step's loop."""

    rank: int
    step: int
    parameter: str
    element: float
    bit: int
    place: str


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.seldom = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, values: torch.Tensor, *, seldom: bool) -> torch.Tensor:
        values = self.norm(values)
        for layer in self.layers:
            values = self.drop(torch.tanh(layer(values)))
        return self.seldom(values) if seldom else values


PARAMETERS = tuple(name for name, _ in Net().named_parameters())


def planted(seed: str) -> Flip:
    """The same on every rank, and in the test."""
    chance = random.Random(seed)
    return Flip(
        rank=chance.randrange(RANKS),
        step=chance.randrange(2, STEPS - 1),
        parameter=chance.choice(PARAMETERS),
        element=chance.random(),
        bit=chance.randrange(32),
        place=chance.choice(["before forward", "before update"]),
    )


def main(url: str, *runs: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=5))
    for run in runs:
        train(url, *run.rsplit(" ", 1))
    dist.barrier()  # the first rank holds the store


def train(url: str, what: str, seed: str) -> None:
    flip = planted(seed) if what == "flip" else None
    torch.manual_seed(1)
    bare = Net()
    if what == "ignored":
        bare._ddp_params_and_buffers_to_ignore = ["seldom.weight", "seldom.bias"]
        with torch.no_grad():
            bare.seldom.weight += dist.get_rank()
    reported: dict[str, Any] = {"run": f"{what} {seed}", "replica_every": 1, "ship_every": 8 if what == "merged" else 1}
    if what == "by hand in turn":
        reported["replica_every"] = 4  # those whose turn comes with the loop's
    if what == "on a device" or (flip and int(seed) % 2):
        reported["backend"] = "device"
    model, inner = wrapped(bare, what), bare if what == "inner model" else None
    for start in (0, STEPS // 2) if what == "restart" else (0,):
        torch.manual_seed(1000 * int(seed) + dist.get_rank())
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        kept = rangewatch.attach(
            inner or model, optimizer, url=url, start_step=start, replicated=what == "not wrapped",
            kinds=["grad", "reduced_grad"], **reported,
        )  # fmt: skip
        with kept:
            steps(model, optimizer, what, start, flip)


def wrapped(bare: nn.Module, what: str) -> nn.Module:
    if what == "not wrapped" or "by hand" in what:
        return bare
    group = None
    if what == "two groups":
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        group = groups[dist.get_rank() // 2]
    model = DistributedDataParallel(
        bare, process_group=group, find_unused_parameters=True, bucket_cap_mb=0.005,
        gradient_as_bucket_view=what == "bucket views",
    )  # fmt: skip
    if what == "no reduction":
        model.register_comm_hook(None, noop_hook)
    return model


def steps(model: Any, optimizer: torch.optim.Optimizer, what: str, start: int, flip: Flip | None) -> None:
    rank = dist.get_rank()
    count = STEPS + (rank if what == "uneven inputs" else 0)
    joined = model.join() if what == "uneven inputs" else contextlib.nullcontext()
    with joined:
        for step in range(start, count):
            damage(model, flip, step, "before forward")
            if what == "accumulation":
                with model.no_sync():
                    backward(model, step, rank, what)
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # some loops do: each rank's own gradients
            with model.no_sync() if what == "local steps" else contextlib.nullcontext():
                backward(model, step, rank, what)
                if what in ("not wrapped", "by hand") or is_reduced_now(what, step):
                    reduce_by_hand(model)
                damage(model, flip, step, "before update")
                if what != "ignored":  # the norm would be each rank's own
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            optimizer.zero_grad()


def backward(model: nn.Module, step: int, rank: int, what: str) -> None:
    is_seldom = what != "unused parameters" or (step + rank) % 5 == 0
    model(torch.randn(8, WIDTH), seldom=is_seldom).square().mean().backward()


def is_reduced_now(what: str, step: int) -> bool:
    return (what == "by hand, then alone" and step < STEPS // 2) or (what == "by hand in turn" and step % 4 == 0)


def reduce_by_hand(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def damage(model: nn.Module, flip: Flip | None, step: int, place: str) -> None:
    if flip is None or (dist.get_rank(), step, place) != (flip.rank, flip.step, flip.place):
        return
    parameter = dict(model.module.named_parameters())[flip.parameter]
    bits = parameter.detach().view(-1).view(torch.int32)
    value = int(flip.element * bits.numel())
    mask = torch.tensor(1 << flip.bit if flip.bit < 31 else -(1 << 31), dtype=torch.int32)
    bits[value] ^= mask


if __name__ == "__main__":
    main(*sys.argv[1:])
