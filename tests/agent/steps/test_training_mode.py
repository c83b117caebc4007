"""A model that is trained while all of it is in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import rangewatch
from tests.agent.ingest_double import IngestDouble

Set = Callable[[nn.Module, int], None]


def train(ingest: IngestDouble, mode: Set, model: nn.Module | None = None, steps: int = 24) -> list[tuple[int, object]]:
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(steps):
            mode(model, step)
            optimizer.zero_grad()
            model(torch.randn(4, 3)).square().sum().backward()
            optimizer.step()
    return [(each.step, each.data) for each in ingest.events("evaluation_mode")]


def left(model: nn.Module, step: int) -> None:
    if step == 5:
        model.eval()


def test_a_model_that_is_left_in_eval(ingest: IngestDouble) -> None:
    ((step, data),) = train(ingest, left)
    assert (step, data) == (12, {"steps": 8, "dropouts": 1, "norms": 1, "was_trained": True})


def test_one_that_is_set_back(ingest: IngestDouble) -> None:
    def set_back(model: nn.Module, step: int) -> None:
        left(model, step)
        if step == 16:
            model.train()

    assert [(step, data["steps"]) for step, data in train(ingest, set_back)] == [(12, 8), (16, 0)]


def frozen_norms(model: nn.Module, step: int) -> None:
    model[1].eval()


def evaluated(model: nn.Module, step: int) -> None:
    """With a backward, as for a map of what it looks at."""
    model.eval()
    model(torch.ones(4, 3)).sum().backward()
    model.train()


def one_evaluation(model: nn.Module, step: int) -> None:
    model.train(step not in (5, 6))


@pytest.mark.parametrize("mode", [frozen_norms, evaluated, one_evaluation])
def test_modes_that_are_meant(ingest: IngestDouble, mode: Set) -> None:
    assert train(ingest, mode) == []


def test_a_model_that_does_the_same_in_both_modes(ingest: IngestDouble) -> None:
    assert train(ingest, left, nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Dropout(0.0))) == []
