"""Floating-point operations of a step: declared, or counted in one step that goes on as it would have."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

import rangewatch
from rangewatch.core.guard import Guard
from rangewatch.steps.flops import Counting, peak_of
from tests.agent.ingest_double import IngestDouble

BATCH, IN, OUT = 8, 16, 32
LINEAR = 2 * BATCH * IN * OUT
"""Of a product of matrices: a multiplication and an addition an element."""


def train(ingest: IngestDouble, steps: int = 6, **options: Any) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(IN, OUT), nn.ReLU(), nn.Linear(OUT, IN))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    losses = []
    with rangewatch.attach(model, optimizer, url=ingest.url, collect=(), quiet=True, **options):
        for _ in range(steps):
            loss = model(torch.randn(BATCH, IN)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def test_what_is_declared_is_sent_once(ingest: IngestDouble) -> None:
    train(ingest, flops_per_step=1e12, peak_flops=2e15)
    (event,) = ingest.events("flops")
    assert event.data["per_step"] == 1e12 and event.data["peak"] == 2e15
    assert (event.data["source"], event.data["device"]) == ("declared", "cpu")


def test_one_step_is_counted_and_training_is_bit_for_bit_the_same(ingest: IngestDouble) -> None:
    plain = train(ingest)
    assert not ingest.events("flops")
    assert train(ingest, flops_per_step="measure") == plain
    (event,) = ingest.events("flops")
    # Forward of two layers; backward of both by weight, and of the second by its input.
    assert event.data["per_step"] == 2 * LINEAR + 3 * LINEAR
    assert (event.step, event.data["source"], event.data["peak"]) == (3, "measured", None)


def test_no_mode_is_left_where_training_ends_within_the_step(ingest: IngestDouble) -> None:
    model = nn.Linear(IN, OUT)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    handle = rangewatch.attach(model, optimizer, url=ingest.url, collect=(), quiet=True, flops_per_step="measure")
    with pytest.raises(KeyError), handle:
        for step in range(5):
            model(torch.ones(BATCH, IN)).sum().backward()
            if step == 3:
                assert isinstance(_python_dispatch._get_current_dispatch_mode(), Counting)
                raise KeyError
            optimizer.step()
    assert _python_dispatch._get_current_dispatch_mode() is None
    assert not ingest.events("flops")


class Foreign(TorchDispatchMode):
    """A mode of the user's."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def modes(ingest: IngestDouble, enter: int, leave: int) -> list[type | None]:
    """What is on top of the dispatch modes after each step. A user's mode is entered within the step `enter`, and left
    within `leave`."""
    model, foreign, seen = nn.Linear(IN, OUT), Foreign(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url, collect=(), quiet=True, flops_per_step="measure"):
        for step in range(8):
            if step == enter:
                foreign.__enter__()
            model(torch.ones(BATCH, IN)).sum().backward()
            if step == leave:
                foreign.__exit__(None, None, None)
            optimizer.step()
            mode = _python_dispatch._get_current_dispatch_mode()
            seen.append(None if mode is None else type(mode))
    return seen


def test_a_users_mode_entered_within_the_counted_step_and_left_after_it(ingest: IngestDouble) -> None:
    assert modes(ingest, 3, 5) == [None, None, Counting, Foreign, Foreign, None, None, None]
    (event,) = ingest.events("flops")
    assert event.step == 3


def test_none_is_entered_within_a_users_mode(ingest: IngestDouble) -> None:
    assert modes(ingest, 1, 5) == [None, Foreign, Foreign, Foreign, Foreign, Counting, None, None]
    (event,) = ingest.events("flops")
    assert event.step == 6


def test_a_formula_that_fails_gives_no_number(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> int:
        raise ZeroDivisionError

    from torch.utils import flop_counter

    monkeypatch.setattr(Guard, "fatal", False)
    monkeypatch.setitem(flop_counter.flop_registry, torch.ops.aten.addmm, broken)
    losses = train(ingest, flops_per_step="measure")
    assert len(losses) == 6 and not ingest.events("flops")


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA H100 PCIe", 756e12), ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12), ("NVIDIA L40S", 362e12), ("NVIDIA L40", None), ("NVIDIA GB200", 2_500e12),
        ("Tesla V100-SXM2-32GB", 125e12), ("Tesla V100-SXM3-32GB", 125e12), ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("AMD Instinct MI300X", 1_307e12), ("NVIDIA GeForce RTX 3060", None), ("cpu", None),
    ],
)  # fmt: skip
def test_known_devices(name: str, peak: float | None) -> None:
    assert peak_of(name) == peak


@pytest.mark.parametrize("options", [{"flops_per_step": "guess"}, {"flops_per_step": 0}, {"peak_flops": -1.0}])
def test_what_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be a number above 0"):
        rangewatch.attach(nn.Linear(2, 2), **options)


def test_from_the_environment(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANGEWATCH_FLOPS_PER_STEP", "2e9")
    train(ingest, 1)
    assert ingest.events("flops")[0].data["per_step"] == 2e9
