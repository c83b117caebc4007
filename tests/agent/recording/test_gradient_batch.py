"""Gradients on an accelerator are read together, where they stay what they are until the backward ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import rangewatch
from rangewatch.core import limits
from rangewatch.recording.observer import Observer
from tests.agent.ingest_double import IngestDouble
from tests.agent.statistics.reference import KeepEverything, assert_recorded


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many were read at once, each time."""
    sizes: list[int] = []
    original = Observer.read_many

    def read_many(self: Observer, pairs: Any) -> None:
        sizes.append(len(pairs))
        original(self, pairs)

    monkeypatch.setattr(Observer, "read_many", read_many)
    return sizes


class Net(nn.Module):
    def __init__(self, *, reentrant: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = checkpoint(self.second, x, use_reentrant=True) if self.reentrant else self.second(x)
        return self.third(x)


def train(ingest: IngestDouble, model: nn.Module, steps: int = 2, microbatches: int = 1) -> None:
    reference = KeepEverything(model)
    for module in model.modules():  # it is told after our hooks; only the parameters' are compared
        module._forward_hooks.clear()
    kept = []
    with rangewatch.attach(model, url=ingest.url, backend="device", kinds=["grad"]) as handle:
        for _ in range(steps):
            for _ in range(microbatches):
                model(torch.randn(2, 4)).square().sum().backward()
            kept.append(dict(reference.kept))
            reference.clear()
            model.zero_grad()
            handle.step()
        assert handle.stats()["faults"] == {} and handle.stats()["not_observed"] == {}
    for step, tensors in enumerate(kept):
        assert_recorded(ingest.tensors(), step, tensors)


@pytest.mark.parametrize("at_once", [1, 4, 64])
def test_values_are_those_of_each(
    ingest: IngestDouble, batches: list[int], monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """The reference's own hooks are removed first: another hook on a parameter means that it is read at once."""
    monkeypatch.setattr(limits, "GRADIENTS_AT_ONCE", at_once)
    model = Net()
    kept = []
    with rangewatch.attach(model, url=ingest.url, backend="device", kinds=["grad"]) as handle:
        for _ in range(2):
            for _ in range(2):
                model(torch.randn(2, 4)).square().sum().backward()
                kept.append({name: value.grad.clone() for name, value in model.named_parameters()})  # type: ignore[union-attr]
            model.zero_grad()
            handle.step()
        assert handle.stats()["faults"] == {}
    for step in range(2):
        wanted = {(name, "grad", 0): [part[name] for part in kept[2 * step : 2 * step + 2]] for name in kept[0]}
        assert_recorded(ingest.tensors(), step, wanted)
    assert max(batches) == min(at_once, 6) and sum(batches) == 24


def test_a_backward_inside_a_backward(ingest: IngestDouble, batches: list[int]) -> None:
    model = Net(reentrant=True)
    with rangewatch.attach(model, url=ingest.url, backend="device", kinds=["grad"]) as handle:
        model(torch.randn(2, 4, requires_grad=True)).square().sum().backward()
        wanted = {(name, "grad", 0): [value.grad.clone()] for name, value in model.named_parameters()}  # type: ignore[union-attr]
        handle.step()
        assert handle.stats()["faults"] == {}
    assert_recorded(ingest.tensors(), 0, wanted)
    assert sum(batches) == 6 and max(batches) > 1


def test_another_hook_may_use_them_up(ingest: IngestDouble, batches: list[int]) -> None:
    train(ingest, Net(), microbatches=2)
    assert batches == []


def test_a_backward_that_raises_loses_nothing_of_the_next(ingest: IngestDouble) -> None:
    model = Net()
    with rangewatch.attach(model, url=ingest.url, backend="device", kinds=["grad"]) as handle:
        for fails in (True, False):
            y = model(torch.randn(2, 4))
            if fails:
                hook = model.first.weight.register_hook(lambda gradient: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    y.sum().backward()
                hook.remove()
            else:
                y.sum().backward()
            handle.step()
        assert handle.stats()["faults"] == {}
    cells = ingest.tensors()["third.weight", "grad", 0]
    assert [cells[step]["call_count"] for step in sorted(cells)] == [1, 1]
    assert sorted(ingest.tensors()["first.bias", "grad", 0])[-1] == 1


@pytest.mark.allow_faults
def test_a_fault_at_the_end_of_the_backward_is_not_the_users(
    ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Observer, pairs: Any) -> None:
        raise OSError("no device")

    monkeypatch.setattr(Observer, "read_many", fails)
    model = Net()
    with rangewatch.attach(model, url=ingest.url, backend="device", kinds=["grad"]) as handle:
        model(torch.randn(2, 4)).square().sum().backward()
        handle.step()
        assert handle.stats()["faults"] == {"grad at the end of the backward": 1}
    assert all(parameter.grad is not None for parameter in model.parameters())
