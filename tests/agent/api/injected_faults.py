"""Trains with a fault in guarded places, in a process of its own: what such a fault leaves behind ends with it.

    injected_faults.py URL each|before|after

Prints a line of JSON: for each place whether the training came out bit for bit as without an agent (`each`: one place
after the other; `before` and `after`: every place at once, before or after what it does).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rangewatch
from rangewatch.core.guard import Guard, Guarded

STEPS = 6


def train(url: str | None) -> list[torch.Tensor]:
    """Losses, and the parameters at the end: DDP, a loss scaler, a module that is called twice, values logged."""
    torch.manual_seed(3)
    inner = nn.Linear(8, 8)
    model = DistributedDataParallel(nn.Sequential(inner, nn.GELU(), inner, nn.Linear(8, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    handle = None
    if url is not None:
        handle = rangewatch.attach(
            model, optimizer, scaler=scaler, url=url, run="faults", full_every=2, histograms=True, ship_interval_s=0.0,
            kinds=["output", "grad_output", "grad", "weight", "input", "update"], weight_every=2,
            trace_batch_nums=[3],
        )  # fmt: skip
    losses = []
    for step in range(STEPS):
        data = torch.linspace(-1, 1, 32).reshape(4, 8) * (step + 1)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(data).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if handle is not None:
            handle.log(loss=loss, step_size=0.01)
        losses.append(loss.detach().clone())
    if handle is not None:
        handle.detach()
    return [*losses, *[parameter.detach().clone() for parameter in model.parameters()]]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(mine, its) for mine, its in zip(one, other, strict=True))


def broken(body: Callable[..., Any], *, is_late: bool) -> Callable[..., Any]:
    def breaks(*args: Any) -> None:
        if is_late:
            body(*args)
        raise ZeroDivisionError("planted")

    return breaks


class Places:
    """Puts a fault into guarded places as they are made or run; `wanted` None: only notes which there are."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.wanted: Callable[[str], bool] = lambda place: False
        self.is_late = False
        made, run = Guarded.__init__, Guard.run
        places = self

        def init(self: Guarded, guard: Guard, place: str, body: Callable[..., Any]) -> None:
            made(self, guard, place, places.through(place, body))

        def running(self: Guard, place: str, body: Callable[[], Any]) -> bool:
            return run(self, place, places.through(place, body))

        Guarded.__init__ = init  # type: ignore[method-assign]
        Guard.run = running  # type: ignore[method-assign]

    def through(self, place: str, body: Callable[..., Any]) -> Callable[..., Any]:
        self.seen.add(place)

        def either(*args: Any) -> None:
            (broken(body, is_late=self.is_late) if self.wanted(place) else body)(*args)

        return either


def one_rank(folder: str) -> None:
    """A group of gloo's, for DDP."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)


def main(url: str, what: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        one_rank(folder)
        plain, places = train(None), Places()
        found = {"": same(train(url), plain)}
        if what == "each":
            for place in sorted(places.seen):
                places.wanted = place.__eq__
                found[place] = same(train(url), plain)
        else:
            places.wanted, places.is_late = lambda place: True, what == "after"
            found["all"] = same(train(url), plain)
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        os._exit(0)  # the threads that could not be stopped are not waited for


if __name__ == "__main__":
    main(*sys.argv[1:])
