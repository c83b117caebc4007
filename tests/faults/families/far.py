"""Trainings of a table of values beside a small net, as of places, times or counters: the table is read less an
origin, which may be so far from 0 that the optimizer's updates are rounded away. And parameters that small updates
leave as they are for a good reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.faults.families.setups import loop, mlp
from tests.faults.fault import Job

COLUMNS, ROWS = 2, 256
LONG = 200


class Table(nn.Module):
    def __init__(self, count: int, origin: float, dtype: torch.dtype, *, has_net: bool) -> None:
        super().__init__()
        self.origin = origin
        self.places = nn.Parameter((origin + 2 * torch.randn(count, COLUMNS).double()).to(dtype))
        self.net = mlp(32, nn.Tanh, 1, COLUMNS) if has_net else None

    def forward(self, which: Tensor, x: Tensor) -> Tensor:
        near = (self.places[which] - self.origin).float()
        value = (near * x).sum(1)
        return value if self.net is None else value + self.net(x)[:, 0]


def table(
    job: Job, steps: int = LONG, *, origin: float = 0.0, lr: float = 0.05, count: int = 300,
    dtype: torch.dtype = torch.float32, optimizer: Callable[..., Any] = torch.optim.Adam, has_net: bool = True,
    is_frozen: bool = False, of_table: Callable[[float], float] = lambda at: 1.0,
) -> None:  # fmt: skip
    """`lr` of the table alone, times `of_table(part of the run)`."""
    torch.manual_seed(job.seed)
    true, model = 2 * torch.randn(count, COLUMNS), Table(count, origin, dtype, has_net=has_net)
    model.places.requires_grad_(not is_frozen)
    groups: list[dict[str, Any]] = [] if is_frozen else [{"params": [model.places], "lr": lr}]
    if model.net is not None:
        groups.append({"params": list(model.net.parameters()), "lr": 0.01})
    updates = optimizer(groups)

    def before(step: int) -> None:
        if not is_frozen:
            updates.param_groups[0]["lr"] = lr * of_table(step / steps)

    def loss_of(step: int) -> Tensor:
        which, x = torch.randint(0, count, (ROWS,)), torch.randn(ROWS, COLUMNS)
        wanted = (true[which] * x).sum(1) + torch.tanh(2 * x[:, 0])
        return (model(which, x) - wanted).square().mean()

    loop(job, model, updates, loss_of, steps, before)


class Normed(nn.Module):
    """Norms of ones in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 32), nn.LayerNorm(32))
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)))[:, 0]


def norms(job: Job, steps: int = LONG, *, schedule: Callable[[int, int], float]) -> None:
    """At rates that leave norms as they are for a while: `schedule(step, steps)` times 3e-3."""
    torch.manual_seed(job.seed)
    model = Normed()
    updates = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def before(step: int) -> None:
        updates.param_groups[0]["lr"] = 3e-3 * schedule(step, steps)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(64, 8)
        return (model(x) - torch.tanh(x[:, 0]) * x[:, 1]).square().mean()

    loop(job, model, updates, loss_of, steps, before)


def level(job: Job, steps: int = LONG) -> None:
    """Of all rows at each step, by SGD: a level near 5,000 that is soon where it belongs, and stays."""
    torch.manual_seed(job.seed)
    x = torch.randn(64, 4)
    y = 5000 + x @ torch.tensor([0.5, -1.0, 2.0, 0.0])
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.bias.fill_(4990.0)
    updates = torch.optim.SGD(model.parameters(), lr=0.1)
    loop(job, model, updates, lambda step: (model(x)[:, 0] - y).square().mean(), steps)


def train(job: Job, steps: int, *, kind: Callable[..., None] = table, **arguments: Any) -> None:
    kind(job, steps, **arguments)


def warm_up(step: int, steps: int) -> float:
    """From 3e-10, tenfold in each 20 steps."""
    return min(1.0, 1e-7 * 10 ** (step / 20))


def cosine(step: int, steps: int) -> float:
    """To 0 at nine tenths of the run."""
    return 0.5 + 0.5 * math.cos(math.pi * min(1.0, step / steps / 0.9))


HEALTHY: dict[str, dict[str, Any]] = {
    "near 0": {},
    "far away at a rate that is felt": {"origin": 5e6, "lr": 1.0},
    "far away in float64": {"origin": 5e6, "dtype": torch.float64},
    "far away, frozen": {"origin": 5e6, "is_frozen": True},
    "far away, at a rate that falls": {"origin": 2e5, "of_table": lambda at: math.exp(-8 * at)},
    "norms in a warm-up": {"kind": norms, "schedule": warm_up},
    "norms whose rate ends at 0": {"kind": norms, "schedule": cosine},
    "a level that has converged": {"kind": level},
}
