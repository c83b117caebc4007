"""Batches of torch's loader or of the loop itself, and what is computed of them before the model and the loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests.faults.families.setups import mlp
from tests.faults.fault import Job
from tests.faults.models import FEATURES

Row = dict[str, Tensor]


class Rows(Dataset[Row]):
    """`bad`: the name of what holds NaN in row `at`; "constant": that row has one and the same value in all columns."""

    def __init__(self, count: int, seed: int, bad: str = "", at: int = 0) -> None:
        data = torch.Generator().manual_seed(seed)
        self.x = torch.randn(count, FEATURES, generator=data)
        self.y = self.x[:, :3].sum(1, keepdim=True)
        self.weight = torch.rand(count, 1, generator=data) + 0.5
        if bad == "constant":
            self.x[at] = 3.0
        elif bad:
            getattr(self, bad)[at, 0] = float("nan")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, at: int) -> Row:
        return {"x": self.x[at], "y": self.y[at], "weight": self.weight[at]}


def standardised(x: Tensor) -> Tensor:
    """By the deviation of each row."""
    return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)


def by_noise(level: Tensor) -> Tensor:
    """Weights that fall with a ratio of signal to noise, 0 / 0 where the level is 1."""
    ratio = (1 - level) / level
    return ratio.clamp(max=5.0) / ratio


def train(
    job: Job, steps: int = 160, *, from_loader: bool = True, bad: str = "", at: int = 0, standardises: bool = False,
    weighs: str = "", since: int = 10_000, prefetches: bool = False, in_place: bool = False, **options: Any,
) -> None:  # fmt: skip
    """Batches of 16. `weighs`: "loaded" weights of rows, those by "noise" (0 / 0 from step `since` on), or by none.
    `prefetches`: the loop has the next batch before it trains on one. `in_place`: rows are standardised where they
    lie."""
    data = Rows(16 * steps, job.seed, bad, 16 * at + 5)
    loader: DataLoader[Row] = DataLoader(data, batch_size=16)
    model = mlp()
    head = nn.Linear(model(torch.zeros(1, FEATURES)).shape[-1], 1)
    whole = nn.Sequential(model, head)
    optimizer = torch.optim.Adam(whole.parameters(), lr=1e-3)
    batches = _from(loader) if from_loader else _by_hand(data, steps)
    with job.attach(whole, optimizer, **options) as watch:
        for step, batch in enumerate(_ahead(batches) if prefetches else batches):
            x, y = batch["x"], batch["y"]
            if standardises and in_place:
                x.sub_(x.mean(1, keepdim=True)).div_(x.std(1, keepdim=True))
            elif standardises:
                x = standardised(x)
            error = (whole(x) - y).square()
            if weighs == "loaded":
                error = batch["weight"] * error
            elif weighs == "noise":
                level = torch.rand(len(x), 1).clamp(0.1, 0.9)
                if step >= since:
                    level[:2] = 1.0
                error = by_noise(level) * error
            loss = error.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.log(loss=loss.item())


def _from(loader: DataLoader[Row]) -> Iterator[Row]:
    yield from loader


def _by_hand(data: Rows, steps: int) -> Iterator[Row]:
    for step in range(steps):
        part = slice(16 * step, 16 * step + 16)
        yield {"x": data.x[part].clone(), "y": data.y[part].clone(), "weight": data.weight[part].clone()}


def _ahead(batches: Iterator[Row]) -> Iterator[Row]:
    now = next(batches)
    for following in batches:
        yield now
        now = following
    yield now


HEALTHY: dict[str, dict[str, Any]] = {
    "weights of rows": {"weighs": "loaded"},
    "standardised rows, loaded ahead": {"standardises": True, "prefetches": True},
    "standardised in place": {"standardises": True, "in_place": True},
    "weights by noise": {"weighs": "noise", "from_loader": False},
}
