"""A loss inside activation checkpointing is left where it is packed."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import rangewatch
from tests.agent.ingest_double import IngestDouble

CLASSES, ONES = torch.arange(16) % 4, torch.ones(16, 1)


@pytest.mark.parametrize(
    "loss",
    [
        lambda out: F.cross_entropy(out, CLASSES),
        lambda out: F.mse_loss(out, ONES.expand(16, 4)),
        lambda out: (out * torch.tensor(math.nan)).sum(),
    ],
    ids=["classes", "squares", "not finite"],
)
def test_no_forward_is_computed_again(ingest: IngestDouble, loss: Callable[[Tensor], Tensor]) -> None:
    model, calls = nn.Linear(3, 4), []

    def loss_of(out: Tensor) -> Tensor:
        calls.append(out)
        return loss(out)

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url, run="packed"):
        for _ in range(10):
            optimizer.zero_grad()
            checkpoint(loss_of, model(torch.ones(16, 3)), use_reentrant=False).backward()
            optimizer.step()
    assert len(calls) == 20, "one of each step's forward and one of its backward"
