"""What an optimizer's step does with single elements."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import rangewatch
from tests.agent.ingest_double import IngestDouble

NAMES = ("sampled_count", "pushed_count", "unmoved_count", "zero_weight_count")


class Own(torch.optim.SGD):
    """Nobody knows how it rounds."""


def counts(ingest: IngestDouble, fqn: str) -> dict[int, tuple[float, ...]]:
    cells = ingest.tensors()[fqn, "grad", 0]
    return {step: tuple(cell.get(name, 0.0) for name in NAMES) for step, cell in cells.items() if cell["sampled_count"]}


def train(ingest: IngestDouble, backend: str, optimizer: Any = torch.optim.SGD, steps: int = 36) -> nn.Module:
    """Of the weight one row in four gets no gradient, and the bias's is taken away."""
    torch.manual_seed(0)
    model = nn.Linear(3, 4).to(torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.zero_()
    updates = optimizer(model.parameters(), lr=1e-5)
    with rangewatch.attach(model, updates, url=ingest.url, backend=backend):
        for _ in range(steps):
            updates.zero_grad()
            model(torch.ones(2, 3, dtype=torch.bfloat16))[:, 1:].sum().backward()
            model.bias.grad.zero_()
            updates.step()
    return model


@pytest.mark.parametrize("backend", ["auto", "device"])
def test_elements_around_the_optimizers_step(ingest: IngestDouble, backend: str) -> None:
    model = train(ingest, backend)
    assert (model.weight == 1).all(), "rounded away"
    assert counts(ingest, "weight") == dict.fromkeys((1, 2, 4, 8, 16, 32), (12.0, 9.0, 9.0, 0.0))
    assert counts(ingest, "bias") == dict.fromkeys((1, 2, 4, 8, 16, 32), (4.0, 0.0, 0.0, 4.0))


def test_an_optimizer_of_ones_own_may_keep_what_is_lost(ingest: IngestDouble) -> None:
    train(ingest, "auto", Own, steps=3)
    assert counts(ingest, "weight") == dict.fromkeys((1, 2), (12.0, 9.0, 0.0, 0.0))
