"""Whether gradients are zeroed between two updates, by torch's count of changes in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import rangewatch
from rangewatch.hooks.optimizers.coverage import KEPT_STEPS
from rangewatch.wire.events import Optimizers, read
from tests.agent.ingest_double import IngestDouble

Step = Callable[[nn.Module, torch.optim.Optimizer, int], None]
X = torch.ones(2, 3)


def kept(ingest: IngestDouble, step: Step, steps: int = KEPT_STEPS + 8, made: str = "SGD") -> list[tuple[int, int]]:
    """The steps at which it was reported, and for how many updates."""
    model = nn.Linear(3, 1)
    optimizer = getattr(torch.optim, made)(model.parameters(), lr=1e-3)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for at in range(steps):
            step(model, optimizer, at)
    known = [(each.step, read(Optimizers, each.data)) for each in ingest.events("optimizers")]
    return [(at, each.kept_gradient_steps) for at, each in known if each is not None and each.kept_gradient_steps]


def backward(model: nn.Module) -> None:
    model(X).square().sum().backward()


def test_from_the_step_on_from_which_nobody_zeroes_them(ingest: IngestDouble) -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, at: int) -> None:
        if at < 5:
            optimizer.zero_grad()
        backward(model)
        optimizer.step()

    assert kept(ingest, step) == [(4 + KEPT_STEPS, KEPT_STEPS)]


def test_clipped_after_micro_steps(ingest: IngestDouble) -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, at: int) -> None:
        backward(model)
        backward(model)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    assert kept(ingest, step)[0][1] == KEPT_STEPS


def after(model: nn.Module, optimizer: torch.optim.Optimizer, at: int) -> None:
    backward(model)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def between(model: nn.Module, optimizer: torch.optim.Optimizer, at: int) -> None:
    """As in a GAN: what another part's backward left is zeroed before its own."""
    backward(model)
    optimizer.zero_grad(set_to_none=bool(at % 2))
    backward(model)
    backward(model)
    optimizer.step()


def decayed(model: nn.Module, optimizer: torch.optim.Optimizer, at: int) -> None:
    """Gradients that are meant to be carried over, with a factor."""
    for each in model.parameters():
        if each.grad is not None:
            each.grad.mul_(0.9)
    backward(model)
    optimizer.step()


def with_graph(model: nn.Module, optimizer: torch.optim.Optimizer, at: int) -> None:
    optimizer.zero_grad()
    (gradient,) = torch.autograd.grad(model(X).square().sum(), [model.weight], create_graph=True)
    gradient.square().sum().backward()
    optimizer.step()


def closure(model: nn.Module, optimizer: torch.optim.Optimizer, at: int) -> None:
    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = model(X).square().sum()
        value.backward()
        return value

    optimizer.step(loss)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("step", "made"), [(after, "Adam"), (between, "SGD"), (decayed, "SGD"), (with_graph, "SGD"), (closure, "LBFGS")]
)
def test_what_is_zeroed_somewhere_is_quiet(ingest: IngestDouble, step: Step, made: str) -> None:
    assert kept(ingest, step, made=made) == []
