"""Trainings in which nothing is wrong: models x precisions x optimizers, with other seeds. They learn."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from tests.faults import families
from tests.faults.fault import Job
from tests.faults.models import (
    MLP,
    Batch,
    Convolution,
    Recurrent,
    Transformer,
    cross_entropy,
    images,
    rows,
    sequences,
    tokens,
)

MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Callable[[int], Batch]]]] = {
    "mlp": (MLP, rows),
    "transformer": (Transformer, tokens),
    "convolution": (Convolution, images),
    "recurrent": (Recurrent, sequences),
    "tanh": (lambda: MLP(act=nn.Tanh), rows),
}
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), 2e-2, momentum=0.9),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), 1e-3),
}
PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"dtype": torch.bfloat16},
    "fp16": {"dtype": torch.float16},
    "fp16 search": {"dtype": torch.float16},
    "fp32 in full": {"level": "frames", "weight_every": 10, "moment_every": 10, "full_every": 10},
}
SCALERS = {"fp16": (2.0**12, 30), "fp16 search": (2.0**32, 25)}
"""First scale and growth interval."""


@dataclasses.dataclass(frozen=True)
class Healthy:
    """One of them."""

    model: str
    precision: str
    optimizer: str
    seed: int

    @property
    def name(self) -> str:
        return f"healthy {self.model}, {self.precision}, {self.optimizer}, seed {self.seed}"

    def train(self, url: str, steps: int, run: str = "") -> None:
        """On this process, to its end. `run`: its run's name, where that is not its own."""
        torch.manual_seed(self.seed)
        make, data = MODELS[self.model]
        model, scaler = make(), None
        if self.precision in SCALERS:
            init_scale, interval = SCALERS[self.precision]
            scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=interval)
        Job(url, run or self.name, self.seed).train(
            model, data(self.seed), cross_entropy, steps, optimizer=OPTIMIZERS[self.optimizer](model), scaler=scaler,
            **PRECISIONS[self.precision],
        )  # fmt: skip


def healthy(count: int) -> Iterator[Healthy]:
    """`count` of them: every combination once, in an order that mixes them, and then with further seeds."""
    every = list(itertools.product(MODELS, PRECISIONS, OPTIMIZERS))
    for number in range(count):
        place = number * 17 % len(every)  # has no common divisor with their number
        yield Healthy(*every[place], seed=number)


@dataclasses.dataclass(frozen=True)
class Script:
    """A variant of one of `families`."""

    family: str
    variant: str
    arguments: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"healthy {self.family}, {self.variant}"

    @property
    def ranks(self) -> int:
        return families.OF_RANKS.get(self.family, 1)

    def train(self, job: Job, steps: int = 400) -> None:
        """On this rank, to its end."""
        torch.manual_seed(job.seed)
        families.HEALTHY[self.family][0](job, steps, **self.arguments)


SCRIPTS = tuple(
    Script(family, variant, arguments)
    for family, (_, variants) in families.HEALTHY.items()
    for variant, arguments in variants.items()
)
"""Scripts as strangers write them, in which nothing is wrong."""


def stops(steps: int) -> list[int | None]:
    """Where each is asked about: every 10th step, and the end."""
    return [*range(10, steps, 10), None]
