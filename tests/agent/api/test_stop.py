"""What stops training when asked to: an overflow, or the number of a step. And steps that are traced in full."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rangewatch
from rangewatch.core.options import OBSERVED_KINDS
from rangewatch.wire.records import MOMENTS
from tests.agent.ingest_double import IngestDouble


class Divides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x


def model_and_optimizer() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), Divides(), nn.Linear(3, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, values: list[float]) -> None:
    for value in values:
        model(torch.full((2, 3), value)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("backend", ["auto", "device"])
def test_an_overflow_raises_before_the_update(ingest: IngestDouble, backend: str) -> None:
    model, optimizer = model_and_optimizer()
    handle = rangewatch.attach(
        model, optimizer, url=ingest.url, run="r", on_overflow="raise", backend=backend, ship_interval_s=0
    )
    train(model, optimizer, [1.0, 2.0])
    good = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(rangewatch.NumericOverflow) as raised:
        for _ in range(10_000):  # what a device holds is known some steps later
            train(model, optimizer, [0.0])
    assert str(raised.value) == (
        "rangewatch: NaN or Inf in step 2 on rank 0, first in output of 1 (Divides, float32): 6 NaN and 0 Inf of 6 "
        "elements, the largest finite magnitude is 0. `rangewatch report 'r' --step 2 --rank 0` shows what came before."
    )
    if backend == "auto":
        assert all(torch.equal(*pair) for pair in zip(good, model.parameters(), strict=True))
    handle.detach()
    assert ingest.tensors()["1", "output", 0][2]["nan_count"] == 6
    assert ingest.events("failed")[0].message.startswith("NumericOverflow: rangewatch: NaN or Inf in step 2")
    assert not ingest.events("finished")


def test_it_raises_once(ingest: IngestDouble) -> None:
    model, optimizer = model_and_optimizer()
    with rangewatch.attach(model, optimizer, url=ingest.url, on_overflow="raise") as handle:
        with pytest.raises(rangewatch.NumericOverflow):
            train(model, optimizer, [0.0])
        train(model, optimizer, [1.0])
        assert handle.stats()["faults"] == {} and handle.stats()["step"] == 2


def test_it_is_recorded_only_by_default(ingest: IngestDouble) -> None:
    model, optimizer = model_and_optimizer()
    with rangewatch.attach(model, optimizer, url=ingest.url):
        train(model, optimizer, [0.0])


def test_infinities_that_are_meant_do_not_stop(ingest: IngestDouble) -> None:
    class Mask(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.full_like(x, -torch.inf)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask, self.linear = Mask(), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(torch.cat([self.linear(x), self.mask(x)], 1), 1)

    for allowed in (["mask"], []):
        model = Attention()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with rangewatch.attach(model, optimizer, url=ingest.url, on_overflow="raise", allow_inf=allowed):
            if allowed:
                train(model, optimizer, [1.0])
            else:
                with pytest.raises(rangewatch.NumericOverflow, match="first in output of mask"):
                    train(model, optimizer, [1.0])


def test_a_gradient_that_the_scaler_skips_is_no_reason(ingest: IngestDouble) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url, on_overflow="raise"):
        for _ in range(2):
            scaler.scale(model(torch.full((2, 3), 1e9)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert ingest.series("skipped_step") == {0: 1.0, 1: 1.0}
    assert ingest.tensors()["weight", "grad", 0][0]["inf_count"] == 3


@pytest.mark.parametrize("has_optimizer", [True, False])
def test_after_a_step(ingest: IngestDouble, has_optimizer: bool) -> None:
    model, optimizer = model_and_optimizer()
    handle = rangewatch.attach(model, optimizer if has_optimizer else None, url=ingest.url, abort_after_batch_num=1)
    with pytest.raises(rangewatch.TrainingStopped, match="stopped after step 1"):
        for _ in range(5):
            train(model, optimizer, [1.0])
            handle.step()
    handle.detach()
    assert sorted(ingest.tensors()["0", "output", 0]) == [0, 1]


def test_traced_steps(ingest: IngestDouble) -> None:
    model, optimizer = model_and_optimizer()
    with rangewatch.attach(model, optimizer, url=ingest.url, trace_batch_nums=[1, 3]):
        train(model, optimizer, [1.0] * 5)
    recorded = ingest.tensors()
    for kind in set(OBSERVED_KINDS) - {"output", "grad_output", "grad", *MOMENTS}:
        assert {step for (_, each, _), cells in recorded.items() for step in cells if each == kind} == {1, 3}, kind
    cells = recorded["0", "output", 0]
    assert [step for step in cells if cells[step]["full_numel"]] == [0, 1, 3], "the first step has the full set too"


def test_a_skipped_step_whose_reduced_gradients_are_recorded(ingest: IngestDouble) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url, on_overflow="raise", level="frames"):
        scaler.scale(model(torch.full((2, 3), 1e9)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert ingest.tensors()["weight", "reduced_grad", 0][0]["inf_count"] == 3


def test_a_loop_that_goes_on_after_it_was_stopped(ingest: IngestDouble) -> None:
    """The step that was stopped is closed once, whole and with its trace, though its scaler is updated later."""
    model, optimizer = model_and_optimizer()
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    options: Any = {"url": ingest.url, "on_overflow": "raise", "level": "frames", "weight_every": 1}
    with rangewatch.attach(model, optimizer, scaler=scaler, **options) as handle:
        for step, value in enumerate((1.0, 0.0, 1.0)):
            scaler.scale(model(torch.full((2, 3), value)).sum()).backward()
            scaler.unscale_(optimizer)
            if step == 1:
                with pytest.raises(rangewatch.NumericOverflow):
                    optimizer.step()
            else:
                scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert handle.stats()["step"] == 3 and handle.stats()["faults"] == {}
    recorded = ingest.tensors()
    assert sorted(recorded["2.weight", "reduced_grad", 0]) == [0, 1, 2]
    assert sorted(recorded["2.weight", "update", 0]) == [0, 2]


def test_which_was_first_is_told_by_the_clock(ingest: IngestDouble) -> None:
    """A module that runs twice is bad in its second call only, for a bad one between."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.divides = nn.ReLU(), Divides()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.divides(self.act(x)))

    model = nn.Sequential(nn.Linear(3, 3), Twice())
    nn.init.zeros_(model[0].weight)  # type: ignore[arg-type]
    nn.init.zeros_(model[0].bias)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = rangewatch.attach(model, optimizer, url=ingest.url, on_overflow="raise")
    with pytest.raises(rangewatch.NumericOverflow, match=r"first in output of 1\.divides"):
        train(model, optimizer, [1.0])
    handle.detach()
    recorded = ingest.tensors()
    assert recorded["1.act", "output", 0][0]["nonfinite_ns"] > recorded["1.divides", "output", 0][0]["nonfinite_ns"] > 0
    assert recorded["0", "output", 0][0]["nonfinite_ns"] == float("inf")
