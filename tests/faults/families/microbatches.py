"""Trainings of small models that ramp their batch up by more microbatches a step, from one step on. As they are they
have nothing wrong: each loss is divided by how many there are, or what is summed is meant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.faults.families.setups import LONG, mlp
from tests.faults.fault import Job, Plant
from tests.faults.models import CLASSES, Convolution, Transformer, images, rows, tokens

Plan = dict[str, Any]

SGD, ADAM = torch.optim.SGD, torch.optim.AdamW


def of_kind(kind: str, seed: int, count: int) -> tuple[nn.Module, Callable[[int, int], tuple[Tensor, Tensor]]]:
    """A model, and its n-th microbatch of at most so many rows."""
    if kind == "words":
        model, data = Transformer(), tokens(seed, count)
    elif kind == "pictures":
        model, data = Convolution(), images(seed, count)
    else:
        model, data = mlp(out=CLASSES), rows(seed)
    return model, lambda at, size: tuple(each[:size] for each in data(at))  # type: ignore[return-value]


def ramped(
    job: Job, steps: int = LONG, *, kind: str = "rows", few: int = 1, many: int = 8, at: int = 100, lr: float = 0.02,
    optimizer: Any = SGD, divides: bool = True, logs: str = "mean", same_batch: bool = False, rate: float = 1.0,
    clip: float | None = None, second: bool = False,
) -> None:  # fmt: skip
    """`same_batch`: the batch is cut into the microbatches; `rate`: of the learning rate from then on; `logs`: the
    mean, the sum, or nothing; `second`: a loss of noisy inputs with a backward of its own begins then."""
    model, data = of_kind(kind, job.seed, 32)
    settings = {"momentum": 0.9} if optimizer is SGD else {}
    updates = optimizer(model.parameters(), lr=lr, **settings)
    with job.attach(model, updates) as watch:
        for step in range(steps):
            parts = few if step < at else many
            updates.param_groups[0]["lr"] = lr * (1.0 if step < at else rate)
            size, total = 32 // parts if same_batch else 16, 0.0
            updates.zero_grad()
            for part in range(parts):
                x, y = data(step * many + part, size)
                loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
                (loss / parts if divides else loss).backward()
                total += loss.item()
            if second and step >= at:
                shifted = F.cross_entropy(model(x + 0.1 * torch.randn_like(x)).flatten(0, -2), y.flatten())
                shifted.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            updates.step()
            if logs != "nothing":
                watch.log(loss=total / (parts if logs == "mean" else 1))


def train(
    job: Job, steps: int = LONG, plant: Plant | None = None, *, setup: Callable[..., None], **options: Any
) -> None:
    """One of the functions above."""
    setup(job, steps, **options)


HEALTHY: dict[str, Plan] = {
    "eight in place of one, divided": {"setup": ramped},
    "eight of words, divided, nothing logged": {"setup": ramped, "kind": "words", "logs": "nothing", "lr": 0.05},
    "a batch cut in four, divided": {"setup": ramped, "same_batch": True, "many": 4},
    "summed under Adam": {"setup": ramped, "divides": False, "optimizer": ADAM, "lr": 1e-3},
    "summed, and the rate divided": {"setup": ramped, "divides": False, "rate": 1 / 8},
    "summed behind a clip": {"setup": ramped, "divides": False, "clip": 0.1},
    "a second loss from step 100": {"setup": ramped, "many": 1, "second": True},
}
"""Each looks like one of the faults of `cases.microbatches`, and is none."""
