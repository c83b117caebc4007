"""Trainings of small models whose loss joins tensors of several shapes: one number a row, maps, values, pairs of rows,
quantiles. As they are they have nothing wrong; `keeps` leaves a dimension of size 1 where the target has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.faults.families.setups import LONG, loop, mlp
from tests.faults.fault import Job, Plant
from tests.faults.models import FEATURES

Plan = dict[str, Any]
Loss = Callable[[Tensor, Tensor], Tensor]

ROWS = 32


def squares(out: Tensor, y: Tensor) -> Tensor:
    return ((out - y) ** 2).mean()


def absolute(out: Tensor, y: Tensor) -> Tensor:
    return F.l1_loss(out, y)


def binary(out: Tensor, y: Tensor) -> Tensor:
    """A cross entropy with logits, by hand."""
    y = (y > 0).float()
    return (F.softplus(out) - out * y).mean()


@torch.no_grad()
def answers(x: Tensor, field: Tensor) -> Tensor:
    return x @ field + 0.5 * x[:, 0] * x[:, 1] + 0.1 * torch.randn(len(x))


def numbers(
    job: Job, steps: int = LONG, *, loss: Loss = F.mse_loss, keeps: bool = False, is_row: bool = False,
    weighted: bool = False, accumulate: int = 1,
) -> None:  # fmt: skip
    """A number for each row. `is_row`: the prediction is squeezed, and of the target it is that `keeps` says so."""
    model, field = mlp(out=1), 1.5 * torch.randn(FEATURES) / FEATURES**0.5
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(ROWS, FEATURES)
        y, out = answers(x, field), model(x)
        if is_row:
            out, y = out.squeeze(1), y[:, None] if keeps else y
        elif not keeps:
            out = out.squeeze(1)
        if weighted:
            return (torch.rand(ROWS) * F.mse_loss(out, y, reduction="none")).mean()
        return loss(out, y) / accumulate

    if accumulate == 1:
        loop(job, model, optimizer, loss_of, steps)
        return
    with job.attach(model, optimizer) as watch:
        for step in range(steps):
            total = 0.0
            for _ in range(accumulate):
                value = loss_of(step)
                value.backward()
                total += value.item()
            optimizer.step()
            optimizer.zero_grad()
            watch.log(loss=total)


def depth(job: Job, steps: int = LONG, *, keeps: bool = False) -> None:
    """A map of one channel for each picture."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GELU(), nn.Conv2d(16, 1, 3, padding=1))
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(16, 3, 8, 8)
        y = F.avg_pool2d(x.mean(1, keepdim=True), 3, 1, 1)
        return F.smooth_l1_loss(model(x), y.squeeze(1) if keeps else y)

    loop(job, model, optimizer, loss_of, steps)


def values(job: Job, steps: int = LONG, *, keeps: bool = False) -> None:
    """What actions are worth, with a second network as the target."""
    model, slow = mlp(out=4), mlp(out=4)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def loss_of(step: int) -> Tensor:
        x, action = torch.randn(ROWS, FEATURES), torch.randint(0, 4, (ROWS, 1))
        with torch.no_grad():
            y = x[:, 0] + 0.9 * slow(torch.randn(ROWS, FEATURES)).max(1).values
        out = model(x).gather(1, action)
        return F.huber_loss(out, y if keeps else y[:, None])

    loop(job, model, optimizer, loss_of, steps)


def pairs(job: Job, steps: int = LONG, *, kind: str) -> None:
    """Rows are compared with each other, on purpose."""
    model, field = mlp(out=1), torch.randn(FEATURES)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(ROWS, FEATURES)
        out, y = model(x), x @ field
        if kind == "ranks":
            sign = (y[:, None] - y[None]).sign()
            return F.softplus(-sign * (out - out.T)).mean()
        if kind == "detached":
            flat = out.squeeze(1)
            return (1 - (y[:, None] - y).sign() * (flat[:, None] - flat.detach()[None])).relu().mean()
        if kind == "energy":
            noise = torch.randn(ROWS)
            return (out - noise).abs().mean() - 0.5 * (out - out.T).abs().mean()
        near = F.normalize(model[:-1](x))
        return F.cross_entropy(near @ near.T / 0.1, torch.arange(ROWS))

    loop(job, model, optimizer, loss_of, steps)


def quantiles(job: Job, steps: int = LONG) -> None:
    """Nine quantiles of one prediction a row: (B, 1) against (Q,)."""
    model, field = mlp(out=1), torch.randn(FEATURES) / FEATURES**0.5
    levels = torch.arange(1, 10) / 10
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(ROWS, FEATURES)
        missed = answers(x, field)[:, None] - model(x)
        return torch.maximum(levels * missed, (levels - 1) * missed).mean()

    loop(job, model, optimizer, loss_of, steps)


def labels_of_one(job: Job, steps: int = LONG) -> None:
    """The target is a single number for all, as of a GAN's pictures: (B, 1) against (1,)."""
    model = mlp(out=1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def loss_of(step: int) -> Tensor:
        real, fake = model(torch.randn(ROWS, FEATURES) + 1), model(torch.randn(ROWS, FEATURES))
        return ((real - torch.ones(1)) ** 2).mean() + ((fake - torch.zeros(())) ** 2).mean()

    loop(job, model, optimizer, loss_of, steps)


class Waves(nn.Module):
    """Says of (rows, time, 1) how fast each wave is, by its last place, or by attention from there; `is_mixed`: without
    batch_first. `between`: rows of the batch attend to each other, too, on purpose."""

    def __init__(self, *, is_mixed: bool, attends: bool = False, between: bool = False) -> None:
        super().__init__()
        self.rnn = nn.GRU(1, 16, batch_first=attends or not is_mixed)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=not is_mixed) if attends else None
        self.between = nn.MultiheadAttention(16, 2) if between else None
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.rnn(x)
        if self.attention is not None:
            h = h + self.attention(h, h, h, need_weights=False)[0]
        if self.between is not None:
            h = h + self.between(h, h, h, need_weights=False)[0]
        return self.head(h[:, -1])


def waves(job: Job, steps: int = LONG, *, mixed: bool = False, attends: bool = False, between: bool = False) -> None:
    """Batches of 24, and the last of each ten of 10."""
    model = Waves(is_mixed=mixed, attends=attends, between=between)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)

    def loss_of(step: int) -> Tensor:
        rows = 10 if step % 10 == 9 else 24
        y = torch.randint(0, 3, (rows,))
        x = torch.sin(torch.linspace(0, 6, 16) * (y[:, None] + 1.0) + torch.rand(rows, 1)) + 0.1 * torch.randn(rows, 16)
        return F.cross_entropy(model(x[..., None]), y)

    loop(job, model, optimizer, loss_of, steps)


def train(
    job: Job, steps: int = LONG, plant: Plant | None = None, *, setup: Callable[..., None], **options: Any
) -> None:
    """One of the functions above."""
    setup(job, steps, **options)


HEALTHY: dict[str, Plan] = {
    "a number a row": {"setup": numbers, "loss": squares},
    "a number a row, weighted rows": {"setup": numbers, "weighted": True},
    "a number a row, by logits": {"setup": numbers, "loss": binary, "is_row": True},
    "maps of one channel": {"setup": depth},
    "values of actions": {"setup": values},
    "ranks of pairs": {"setup": pairs, "kind": "ranks"},
    "ranks of pairs, one side detached": {"setup": pairs, "kind": "detached"},
    "energy distance": {"setup": pairs, "kind": "energy"},
    "contrasts": {"setup": pairs, "kind": "contrasts"},
    "nine quantiles of one number": {"setup": quantiles},
    "waves": {"setup": waves},
    "waves, attention between rows too": {"setup": waves, "attends": True, "between": True},
    "one label for all rows": {"setup": labels_of_one},
}
"""Each looks like one of the faults of `cases.shapes`, and is none."""
