"""Trainings that are resumed, rolled back or warmed up more than once; schedules that go on or start over there."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.faults.families.setups import mlp
from tests.faults.fault import Job
from tests.faults.models import rows

Plan = Callable[[int], float]
"""Step -> the learning rate, as a part of the highest."""


def linear(warmup: int, length: int) -> Plan:
    return lambda n: min((n + 1) / warmup, max(0.02, (length - n) / (length - warmup)))


def cosine(warmup: int, length: int) -> Plan:
    def at(n: int) -> float:
        part = min(1.0, max(0.0, (n - warmup) / (length - warmup)))
        return (n + 1) / warmup if n < warmup else 0.5 + 0.5 * math.cos(math.pi * part)

    return at


def replayed(plan: Plan, at: int, since: int) -> Plan:
    """From step `at` on it goes on as it was at `since`."""
    return lambda n: plan(n) if n < at else plan(since + n - at)


def saw(period: int, phase: int = 0, floor: float = 0.05) -> Plan:
    return lambda n: floor + (1 - floor) * ((n + phase) % period) / period


def rewarmed(every: int, warmup: int) -> Plan:
    """A constant rate that is warmed up again every so many steps, as where adapters are merged and begun anew."""
    return lambda n: min(1.0, (n % every + 1) / warmup)


def cycles(cycle: int, warmup: int) -> Plan:
    """Cosines to 0 with a warm-up each."""
    one = cosine(warmup, cycle)
    return lambda n: one(n % cycle)


def stages(at: int, warmup: int, part: float) -> Plan:
    """A second stage with a warm-up of its own to another height."""
    first = cosine(30, 2 * at)
    return lambda n: first(n) if n < at else part * min(1.0, (n - at + 1) / warmup)


def periodic(half: int, warmup: int = 0, floor: float = 0.0) -> Plan:
    """A cosine that climbs again after so many steps."""

    def at(n: int) -> float:
        part = 0.5 + 0.5 * math.cos(math.pi * (n - warmup) / half)
        return (n + 1) / warmup if n < warmup else floor + (1 - floor) * part

    return at


def triangles(half: int, floor: float) -> Plan:
    """As torch's CyclicLR."""
    return lambda n: floor + (1 - floor) * abs((n + half) % (2 * half) - half) / half


def decays(factor: float, floor: float = 0.0) -> Plan:
    """By the same factor at each step."""
    return lambda n: max(floor, factor**n)


def stairs(*at: int, times: float = 0.1) -> Plan:
    """As milestones make it."""
    return lambda n: times ** sum(n >= each for each in at)


def falls(at: int, times: float = 0.1) -> Plan:
    return lambda n: min(1.0, (n + 1) / 20) * (1.0 if n < at else times)


def train(
    job: Job, steps: int = 200, *, plan: Plan, lr: float = 2e-3, optimizer: Any = torch.optim.AdamW,
    resumed_at: int | None = None, rolled_back: tuple[int, int] | None = None, **options: Any,
) -> None:  # fmt: skip
    """`resumed_at`: another process of the run goes on from that step. `rolled_back`: at the first step everything is
    as it was at the second again, the schedule too."""
    model, data = mlp(), rows(job.seed)
    made = optimizer(model.parameters(), lr=lr)
    watch = job.attach(model, made, **options)
    snapshot: Any = None
    for step in range(steps):
        if step == resumed_at:
            watch.detach()
            state = made.state_dict()
            made = optimizer(model.parameters(), lr=lr)
            made.load_state_dict(state)
            watch = job.attach(model, made, start_step=step, **options)
        if rolled_back is not None and step == rolled_back[1]:
            snapshot = copy.deepcopy((model.state_dict(), made.state_dict()))
        if rolled_back is not None and step == rolled_back[0]:
            model.load_state_dict(snapshot[0])
            made.load_state_dict(snapshot[1])
        made.param_groups[0]["lr"] = lr * plan(step)
        x, y = data(step)
        loss = F.cross_entropy(model(x), y)
        made.zero_grad()
        loss.backward()
        made.step()
        watch.log(loss=loss.item())
    watch.detach()


def by_lambda(job: Job, steps: int = 200, *, factor: Callable[[float], Plan], lr: float = 3e-3) -> None:
    """torch's LambdaLR with what `factor` makes of the rate."""
    model, data = mlp(), rows(job.seed)
    made = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(made, factor(lr))
    with job.attach(model, made) as watch:
        for step in range(steps):
            x, y = data(step)
            loss = F.cross_entropy(model(x), y)
            made.zero_grad()
            loss.backward()
            made.step()
            schedule.step()
            watch.log(loss=loss.item())


HEALTHY: dict[str, dict[str, Any]] = {
    "a schedule that goes on": {"plan": cosine(40, 400), "resumed_at": 120},
    "resumed in its warm-up": {"plan": linear(100, 500), "resumed_at": 60},
    "teeth of a saw": {"plan": saw(50)},
    "teeth of a saw, begun in the midst of one": {"plan": saw(50, phase=20)},
    "warmed up again every 60 steps": {"plan": rewarmed(60, 20)},
    "cosines with a warm-up each": {"plan": cycles(66, 15)},
    "a second stage with a warm-up of its own": {"plan": stages(100, 25, 0.5)},
    "rolled back to a snapshot of its warm-up": {
        "plan": replayed(linear(100, 500), 80, 20), "rolled_back": (80, 20),
    },
    "the rate falls to a tenth": {"plan": falls(110)},
    "the rate falls to a hundredth, bit by bit": {"plan": decays(0.98)},
    "the rate falls to a floor": {"plan": decays(0.9, 5e-4)},
    "milestones": {"plan": stairs(60, 100, 140)},
    "a plateau is found five times": {"plan": stairs(50, 72, 85, 118, 150)},
    "a line to nothing": {"plan": lambda n: max(0.0, 1 - n / 405)},
    "resumed at a tenth of the rate": {"plan": falls(110), "resumed_at": 110},
    "cycles of straight lines, down to nothing": {"plan": triangles(40, 0.001)},
    "cosines up and down that end at a tenth": {"plan": periodic(50, floor=0.1)},
    "resumed with a cycle that begins there": {"plan": cycles(60, 10), "resumed_at": 120},
}  # fmt: skip
