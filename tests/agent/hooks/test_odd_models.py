"""Models that torch or the user treats in an unusual way: scripted, traced, lazy, in evaluation only, dropped."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rangewatch
from rangewatch.core import limits
from tests.agent.ingest_double import IngestDouble


def train(model: nn.Module, handle: rangewatch.Handle, steps: int = 3) -> None:
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        handle.step()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("is_training", [True, False])
def test_tracing_an_attached_model(ingest: IngestDouble, is_training: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).train(is_training)
    with rangewatch.attach(model, url=ingest.url) as handle:
        traced: Any = torch.jit.trace(model, torch.ones(1, 4))
        assert torch.equal(traced(torch.ones(1, 4)), model(torch.ones(1, 4)))
        assert "aminmax" not in str(traced.inlined_graph)
        assert handle.stats()["faults"] == {}


def test_torch_can_ask_a_hook_for_its_name(ingest: IngestDouble) -> None:
    model = nn.Linear(4, 4)
    with rangewatch.attach(model, url=ingest.url):
        hooks = list(model._forward_hooks.values())
        assert hooks and {hook.__name__ for hook in hooks} == {"rangewatch_hook"}  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_modules_are_hooked_once_they_are_initialised(ingest: IngestDouble) -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU())
    with rangewatch.attach(model, url=ingest.url, ship_interval_s=0) as handle:
        train(model, handle)
        assert handle.stats()["not_observed"] == {}
    recorded = ingest.tensors()
    assert sorted(recorded["0", "output", 0]) == [0, 1, 2]
    assert sorted(recorded["0.weight", "grad", 0]) == [0, 1, 2], "hooked before the first backward"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_script_modules_are_said_not_to_be_observed(ingest: IngestDouble) -> None:
    model = nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(4, 4))), nn.ReLU())
    with rangewatch.attach(model, url=ingest.url) as handle:
        train(model, handle)
        assert handle.stats()["not_observed"] == {"0": "a ScriptModule", "0.0": "a ScriptModule"}
        assert handle.stats()["faults"] == {}
    assert sorted(ingest.tensors()["1", "output", 0]) == [0, 1, 2]


class WithAverage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.average, self.unused = nn.Linear(4, 1), nn.Linear(4, 1).eval(), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def test_a_module_that_ran_in_evaluation_only(ingest: IngestDouble) -> None:
    model = WithAverage()
    with rangewatch.attach(model, url=ingest.url, kinds=["output"], ship_interval_s=0) as handle:
        train(model, handle, 1)
        assert handle.stats()["not_observed"]["average"].startswith("its hook never ran")
        with torch.no_grad():
            model.average(torch.ones(1, 4))
        train(model, handle, 1)
        assert handle.stats()["not_observed"]["average"] == "ran in evaluation only"
        assert handle.stats()["not_observed"]["unused"].startswith("its hook never ran")
        model.average.train()
        model.average(torch.ones(1, 4))
        train(model, handle, 1)
        assert "average" not in handle.stats()["not_observed"]


def test_the_goodbye_adds_no_hook(ingest: IngestDouble) -> None:
    model = nn.Linear(4, 4)
    model.bias.requires_grad_(False)
    handle = rangewatch.attach(model, url=ingest.url, ship_interval_s=3600)
    train(model, handle, 1)
    model.bias.requires_grad_(True)
    handle.detach()
    assert not model.bias._post_accumulate_grad_hooks and not model.weight._post_accumulate_grad_hooks


def sender_threads() -> int:
    return sum(thread.name == "rangewatch-sender" for thread in threading.enumerate())


@pytest.mark.parametrize("keeps_handle", [False, True])
def test_a_model_that_is_dropped_without_detach(
    ingest: IngestDouble, keeps_handle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEFT_POLL_S", 0.01)
    threads = sender_threads()
    model = nn.Linear(4, 1)
    handles = [rangewatch.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), url=ingest.url, ship_interval_s=9)]
    model(torch.ones(1, 4)).sum().backward()
    handles[0].log(loss=1.0)
    del model
    if keeps_handle:
        time.sleep(0.05)  # several looks
        assert handles[0].is_active, "who keeps the handle may still use it"
    handles.clear()
    gc.collect()
    while sender_threads() > threads:  # the test's time limit ends this
        time.sleep(0.01)
    assert len(ingest.events("finished")) == 1


class Routed(nn.Module):
    """A router, a packed recurrence, and a dropout that is there for its probability."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.recurrence = nn.Linear(4, 2), nn.LSTM(4, 4, batch_first=True)
        self.choice, self.unused, self.dropout = Choice(), nn.Linear(4, 4), nn.Dropout(0.1)
        self.mask = Mask()

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=True)
        y = nn.functional.dropout(self.recurrence(packed)[0].data, self.dropout.p)
        return y * self.choice(self.router(y)).unsqueeze(-1) * self.mask(y)


class Mask(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x > 0


class Choice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(-1)


def test_what_has_no_range_is_not_said_to_be_missing(ingest: IngestDouble) -> None:
    model = Routed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
        for _ in range(2):
            model(torch.randn(2, 3, 4)).sum().backward()
            optimizer.step()
        handle.step()
    missing = ingest.events("not_observed")[-1].data
    assert {name for name in missing if "weight" not in name and "bias" not in name} == {"unused"}
    assert ingest.events("other_values")[-1].data["choice"] == {"output[0]": "integer tensor"}
    assert ingest.events("other_values")[-1].data["mask"] == {"output[0]": "bool tensor"}
    assert ingest.tensors()["recurrence", "output", 0]


class Boxed(nn.Module):
    """Gives its output in an object of its own, beside what holds no tensor, or a tensor beside such an object."""

    def __init__(self, *, is_alone: bool) -> None:
        super().__init__()
        self.linear, self.is_alone = nn.Linear(4, 4), is_alone

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        box = Box(self.linear(x))
        return (box, None, 3, "a word", x.shape) if self.is_alone else (box, box.value)


class Box:
    def __init__(self, value: Tensor) -> None:
        self.value = value


def test_an_output_inside_an_object_of_ones_own_is_said_not_to_be_seen(ingest: IngestDouble) -> None:
    model = nn.ModuleDict({"alone": Boxed(is_alone=True), "beside": Boxed(is_alone=False)})
    with rangewatch.attach(model, url=ingest.url) as handle:
        for _ in range(2):
            model["beside"](model["alone"](torch.randn(2, 4))[0].value)[1].sum().backward()
            handle.step()
        assert handle.stats()["not_observed"] == {"alone": "output: Box, not looked into"}
