"""Places that evaluated the model in `eval()` and now do in `train()`, and such as always have called it so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn
from torch.utils.checkpoint import checkpoint

import rangewatch
from tests.agent.ingest_double import IngestDouble

EVERY = 4
Between = Callable[[nn.Module, int], None]


def train(
    ingest: IngestDouble, between: Between, model: nn.Module | None = None, steps: int = 41, whole: bool = False
) -> list[tuple[int, Any]]:
    """`between`: what the loop does after each update. What was said: step and details."""
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
        for step in range(steps):
            optimizer.zero_grad()
            x = torch.randn(4, 3, requires_grad=whole)
            out = checkpoint(model, x, use_reentrant=True) if whole else model(x)
            out.square().sum().backward()
            optimizer.step()
            between(model, step)
        assert not handle.stats()["faults"]
    return [(each.step, each.data) for each in ingest.events("evaluated_in_train")]


def evaluate(model: nn.Module, *, in_train: bool, batches: int = 3) -> None:
    model.train(in_train)
    with torch.no_grad():
        for _ in range(batches):
            model(torch.randn(5, 3))
    model.train()


def flips(since: int, until: int = 1_000) -> Between:
    def between(model: nn.Module, step: int) -> None:
        if step % EVERY == 0:
            evaluate(model, in_train=since <= step < until)

    return between


def test_eval_is_gone(ingest: IngestDouble) -> None:
    ((step, data),) = train(ingest, flips(16))
    assert data.pop("line").startswith("test_evaluation_places.py:")
    assert (step, data) == (21, {"steps": 2, "first": 17, "evals": 4, "norms": 1, "dropouts": 1})


def test_and_comes_back(ingest: IngestDouble) -> None:
    (_, first), (step, second) = train(ingest, flips(16, 28))
    assert first["steps"] == 2 and (step, second["steps"]) == (29, 0)


def test_in_inference_mode(ingest: IngestDouble) -> None:
    def between(model: nn.Module, step: int) -> None:
        if step % EVERY == 0:
            model.train(step >= 16)
            with torch.inference_mode():
                model(torch.randn(5, 3))
            model.train()

    assert len(train(ingest, between)) == 1


def test_dropout_alone(ingest: IngestDouble) -> None:
    ((_, data),) = train(ingest, flips(16), nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5)))
    assert (data["norms"], data["dropouts"]) == (0, 1)


def test_what_is_the_same_in_both_modes(ingest: IngestDouble) -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Dropout(0.0), nn.BatchNorm1d(8, momentum=0.0))
    assert train(ingest, flips(16), model) == []


def always(model: nn.Module, step: int) -> None:
    """As a generator makes pictures for its critic."""
    with torch.no_grad():
        model(torch.randn(5, 3))


def estimated_anew(model: nn.Module, step: int) -> None:
    """Statistics, by the code that evaluates then, before each evaluation."""
    if step % EVERY == 0:
        for in_train in (True, False):
            evaluate(model, in_train=in_train)


def averaged(model: nn.Module, step: int) -> None:
    if step % EVERY == 0:
        evaluate(model, in_train=False)
        if step > 20:
            update_bn([torch.randn(5, 3)], model)


def rollouts(model: nn.Module, step: int) -> None:
    """Played at the same place as evaluations, which came before the first of them."""
    evaluate(model, in_train=step % EVERY != 0 and step > 10, batches=1) if step % EVERY == 0 or step > 10 else None


def noisy(model: nn.Module, step: int) -> None:
    """Monte Carlo dropout, with norms in `eval()`."""
    if step % EVERY == 0:
        model.eval()
        for each in model.modules():
            if isinstance(each, nn.Dropout):
                each.train(step > 20)
        with torch.no_grad():
            model(torch.randn(5, 3))
        model.train()


def once_at_the_end(model: nn.Module, step: int) -> None:
    if step % EVERY == 0:
        evaluate(model, in_train=step == 40)


def by_two_callers(model: nn.Module, step: int) -> None:
    """Labels that the model gives itself, once it is good enough, by the helper that evaluates."""
    if step % EVERY == 0:
        evaluate(model, in_train=False)
    if step % EVERY == 2 and step > 20:
        evaluate(model, in_train=True)


HEALTHY = (always, estimated_anew, averaged, rollouts, noisy, once_at_the_end, by_two_callers)


@pytest.mark.parametrize("between", HEALTHY, ids=lambda each: str(each.__name__))
def test_what_is_meant(ingest: IngestDouble, between: Between) -> None:
    assert train(ingest, between) == []


def test_a_reentrant_checkpoint_is_no_evaluation(ingest: IngestDouble) -> None:
    """It calls the model without gradients at the place of each training step."""
    assert train(ingest, lambda model, step: None, whole=True) == []
