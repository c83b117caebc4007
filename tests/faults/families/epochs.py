"""Passes over a data set by torch's loader, with samplers that shuffle or do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from tests.faults.fault import Job
from tests.faults.models import CLASSES, FEATURES, rows

Rows = Dataset[tuple[Tensor, ...]]


class Counting(DistributedSampler[Any]):
    """Goes on to the next epoch by itself."""

    def __iter__(self) -> Iterator[Any]:
        given = list(super().__iter__())
        self.epoch += 1
        return iter(given)


class Seeded(Sampler[int]):
    """One's own, which is told the epoch and passes over it."""

    def __init__(self, data: Any) -> None:
        self.count, self.epoch, self.shuffle = len(data), 0, True

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.count, generator=torch.Generator().manual_seed(5)).tolist())

    def __len__(self) -> int:
        return self.count


def half(data: Rows, **more: Any) -> DistributedSampler[Any]:
    """That of one of two ranks."""
    return DistributedSampler(data, num_replicas=2, rank=0, seed=3, **more)


SAMPLERS: dict[str, Callable[[Any], Sampler[int]]] = {
    "distributed": half,
    "distributed in order": lambda data: half(data, shuffle=False),
    "counting": lambda data: Counting(data, num_replicas=2, rank=0),
    "own": Seeded,
    "random": RandomSampler,
    "weighted": lambda data: WeightedRandomSampler(torch.ones(len(data)).tolist(), len(data) // 2),
    "in order": SequentialSampler,
}


def train(
    job: Job, steps: int = 200, *, sampler: str = "distributed", batches: int = 24, says: str = "", accumulate: int = 1,
    noise: float = 0.0, reseeds: bool = False, evaluated_by: str = "", looks_first: bool = False, **options: Any,
) -> None:  # fmt: skip
    """`batches` of 16 rows a pass. `says`: how the sampler is told the epoch: "epoch", "the same", or "" not at all.
    `reseeds`: torch's seed is set at the top of each pass. `looks_first`: a pass without training comes before."""
    every = rows(job.seed)
    count = 32 * batches if "distributed" in sampler or sampler in ("counting", "weighted") else 16 * batches
    drawn = [every(at) for at in range(count // len(every(0)[0]) + 1)]
    data = TensorDataset(torch.cat([x for x, _ in drawn])[:count], torch.cat([y for _, y in drawn])[:count])
    chosen = SAMPLERS[sampler](data)
    loader: DataLoader[Any] = DataLoader(data, batch_size=16, sampler=chosen)
    held_out = DataLoader(data, batch_size=16, sampler=SAMPLERS[evaluated_by](data)) if evaluated_by else None
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with job.attach(model, optimizer, **options) as watch:
        if looks_first:
            sum(float(x.mean()) for x, _ in loader)
        step, epoch = 0, 0
        while step < steps:
            tell = getattr(chosen, "set_epoch", None)
            if says and tell is not None:
                tell(epoch if says == "epoch" else 7)
            if reseeds:
                torch.manual_seed(job.seed)
            for at, (x, y) in enumerate(loader):
                loss = F.cross_entropy(model(x + noise * torch.randn(x.shape)), y)
                (loss / accumulate).backward()
                if at % accumulate == accumulate - 1:
                    optimizer.step()
                    optimizer.zero_grad()
                    watch.log(loss=loss.item())
                    step += 1
            if held_out is not None:
                model.eval()
                with torch.no_grad():
                    sum(float(F.cross_entropy(model(x), y)) for x, y in held_out)
                model.train()
            epoch += 1


def drawn(job: Job, steps: int = 200, *, batches: int = 16, words: bool = False, seed: str = "the same") -> None:
    """Batches are made as they are needed, `batches` in an epoch. `seed` is set at the top of each: "the same", that
    of the "epoch", or around an evaluation alone ("forked")."""
    torch.manual_seed(job.seed)
    text = torch.randint(0, CLASSES, (4_096,))
    first = nn.Sequential(nn.Embedding(CLASSES, 32), nn.Flatten()) if words else nn.Linear(FEATURES, 32)
    model = nn.Sequential(first, nn.Dropout(0.1), nn.GELU(), nn.Linear(128 if words else 32, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with job.attach(model, optimizer) as watch:
        for step in range(steps):
            if step % batches == 0 and seed in ("the same", "epoch"):
                torch.manual_seed(11 + step * (seed == "epoch"))
            elif step % batches == 0:
                with torch.random.fork_rng(), torch.no_grad():
                    torch.manual_seed(11)
                    model(torch.randint(0, CLASSES, (8, 4)) if words else torch.randn(8, FEATURES))
            if words:
                at = torch.randint(0, len(text) - 5, (32, 1)) + torch.arange(4)
                x, y = text[at], text[at[:, 0]]
            else:
                x = torch.randn(32, FEATURES)
                y = x[:, :CLASSES].argmax(1)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.log(loss=loss.item())


HEALTHY: dict[str, dict[str, Any]] = {
    "the sampler is told the epoch": {"says": "epoch"},
    "evaluated in one and the same shuffled order": {"says": "epoch", "evaluated_by": "distributed"},
    "one batch again and again": {"batches": 1},
    "three batches again and again": {"batches": 3, "sampler": "distributed"},
    "in order on purpose": {"sampler": "in order"},
    "in order on several ranks": {"sampler": "distributed in order"},
    "a sampler that counts epochs itself": {"sampler": "counting"},
    "shuffled": {"sampler": "random", "accumulate": 4},
    "drawn by weights": {"sampler": "weighted"},
    "looked at before the training": {"says": "epoch", "looks_first": True},
}
