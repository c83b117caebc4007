"""Trainings that are well: dense models in float32, bfloat16, float16 with a scaler and in emulated FP8, MXFP8 and
MXFP6 whose loss stays with an unquantized twin's, and models with experts made from config.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from tests.e2e.expert_ranks import SIZES
from tests.e2e.expert_ranks import made as with_experts
from torch import nn

from low_precision_trainings.models import BATCH, LENGTH, VOCABULARY, Transformer
from low_precision_trainings.quantize import Recipe

LOW = {"bfloat16": torch.bfloat16, "float16": torch.float16}
RECIPES = {
    "hybrid": Recipe("e4m3_tensor", "e5m2_tensor"),
    "delayed": Recipe("e4m3_delayed", "e5m2_delayed"),
    "rows": Recipe("e4m3_row", "e4m3_row"),
    "mxfp8": Recipe("mxfp8_e4m3", "mxfp8_e4m3"),
    "mxfp6": Recipe("mxfp6_e2m3", "mxfp8_e4m3"),
}


class Trained(Protocol):
    """What `bench/low_precision.py` trains."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: Any

    def losses(self, steps: int) -> Iterator[float]:
        """That of each step."""


class Healthy(NamedTuple):
    """`make(seed)` gives what is trained for `steps`."""

    name: str
    make: Any
    seed: int
    steps: int


class Tokens:
    """Next tokens of a chain with four successors each, under autocast where `precision` names a dtype."""

    def __init__(self, seed: int, model: nn.Module, lr: float, precision: str, *, is_transformers: bool) -> None:
        self.model, self.precision, self.is_transformers = model, precision, is_transformers
        self.optimizer = torch.optim.AdamW(model.parameters(), lr)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12) if precision == "float16" else None
        self.generator = torch.Generator().manual_seed(seed + 1)
        self.size = SIZES["vocab_size"] if is_transformers else VOCABULARY
        self.successor = torch.randint(self.size, (self.size, 4), generator=self.generator)

    def losses(self, steps: int) -> Iterator[float]:
        """That of each step."""
        for step in range(steps):
            for group in self.optimizer.param_groups:
                group.setdefault("peak", group["lr"])
                group["lr"] = group["peak"] * min(1.0, (step + 1) / 10)
            with torch.autocast("cpu", LOW.get(self.precision), enabled=self.precision in LOW):
                loss = self.loss()
            self.optimizer.zero_grad()
            if self.scaler is None:
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
            else:
                self.scaler.scale(loss).backward()
                self.scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.scaler.step(self.optimizer)
                self.scaler.update()
            yield loss.item()

    def loss(self) -> torch.Tensor:
        rows = torch.empty(BATCH, LENGTH + 1, dtype=torch.long)
        rows[:, 0] = torch.randint(self.size, (BATCH,), generator=self.generator)
        for at in range(LENGTH):
            rows[:, at + 1] = self.successor[rows[:, at], torch.randint(4, (BATCH,), generator=self.generator)]
        if self.is_transformers:
            loss: torch.Tensor = self.model(input_ids=rows, labels=rows, output_router_logits=True).loss
            return loss
        logits = self.model(rows[:, :-1])
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


def _dense(seed: int, recipe: Recipe, precision: str, is_glu: bool) -> Tokens:
    torch.manual_seed(seed)
    return Tokens(seed, Transformer(recipe, layers=2, is_glu=is_glu), 3e-3, precision, is_transformers=False)


def _experts(seed: int, name: str, precision: str) -> Tokens:
    torch.manual_seed(seed)
    return Tokens(seed, with_experts(name), 3e-3, precision, is_transformers=True)


def _all() -> Iterator[Healthy]:
    for at, name in enumerate(("Mixtral", "Qwen3-MoE", "OLMoE")):
        for seed, precision in enumerate(("float32", "float32", "bfloat16", "bfloat16", "float16", "bfloat16")):
            steps = 200 if seed == 0 else 60
            make = partial(_experts, name=name, precision=precision)
            yield Healthy(f"experts/{name}/{precision}/{seed}", make, 10 * at + seed, steps)
    for precision in ("float32", "bfloat16", "float16"):
        for seed in range(4):
            make = partial(_dense, recipe=Recipe(), precision=precision, is_glu=seed % 2 == 1)
            steps = 400 if (seed, precision) == (0, "bfloat16") else 60 + 40 * seed
            yield Healthy(f"dense/{precision}/{seed}", make, seed, steps)
    for name, recipe in RECIPES.items():
        for seed in range(4):
            make = partial(_dense, recipe=recipe, precision="float32", is_glu=seed % 2 == 1)
            yield Healthy(f"emulated/{name}/{seed}", make, seed, 200 if seed == 0 else 60)


HEALTHY: tuple[Healthy, ...] = tuple(_all())
