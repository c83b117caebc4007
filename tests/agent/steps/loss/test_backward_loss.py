"""The loss of a loop that logs none is the scalar that `backward` is called on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import rangewatch
from rangewatch.recording.logged_values import LOSS_NAMES
from rangewatch_server.rules.loss.series import NAMES
from tests.agent.ingest_double import IngestDouble

STEPS = 4


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.randn(3, 2)).pow(2).mean()  # type: ignore[no-any-return]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_the_names_are_those_that_the_rules_look_for() -> None:
    assert frozenset(NAMES) == LOSS_NAMES


@pytest.mark.parametrize("backend", ["auto", "device"])
@pytest.mark.parametrize("level", ["grads", "outputs"])
def test_the_two_lines_are_enough(ingest: IngestDouble, backend: str, level: str) -> None:
    model = nn.Linear(2, 1)
    optimizer = sgd(model)
    rangewatch.attach(model, optimizer, url=ingest.url, backend=backend, level=level)
    losses = {}
    for step in range(STEPS):
        loss = loss_of(model)
        loss.backward()
        losses[step] = loss.item()
        optimizer.step()
    rangewatch.detach(model)
    assert ingest.series("loss") == losses


@pytest.mark.parametrize("backend", ["auto", "device"])
def test_without_its_loss_scale(ingest: IngestDouble, backend: str) -> None:
    model = nn.Linear(2, 1)
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    losses = {}
    with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url, backend=backend):
        for step in range(STEPS):
            loss = loss_of(model)
            scaler.scale(loss).backward()
            losses[step] = loss.item()
            scaler.step(optimizer)
            scaler.update()
    assert scaler.get_scale() > 1024.0
    assert ingest.series("loss") == pytest.approx(losses)


def test_microbatches_add_up(ingest: IngestDouble) -> None:
    model = nn.Linear(2, 1)
    optimizer = sgd(model)
    losses = dict.fromkeys(range(STEPS), 0.0)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(STEPS):
            for _ in range(3):
                loss = loss_of(model) / 3
                loss.backward()
                losses[step] += loss.item()
            optimizer.step()
    assert ingest.series("loss") == pytest.approx(losses)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["loss", "train_loss"])
def test_a_logged_loss_is_the_loss(ingest: IngestDouble, when: str, name: str) -> None:
    model = nn.Linear(2, 1)
    optimizer = sgd(model)
    with rangewatch.attach(model, optimizer, url=ingest.url, ship_interval_s=0) as handle:
        for step in range(STEPS):
            loss_of(model).backward()
            if when == "before":
                handle.log(**{name: float(step)})
            optimizer.step()
            if when == "after":
                handle.log(**{name: float(step)})
    assert ingest.series(name) == {step: float(step) for step in range(STEPS)}
    assert name == "loss" or not ingest.series("loss")


def test_one_that_is_logged_from_later_on(ingest: IngestDouble) -> None:
    """As by a trainer that logs each hundredth step."""
    model = nn.Linear(2, 1)
    optimizer = sgd(model)
    with rangewatch.attach(model, optimizer, url=ingest.url, ship_interval_s=0) as handle:
        for step in range(6):
            loss_of(model).backward()
            optimizer.step()
            if step in (3, 5):
                handle.log(loss=-1.0)
    series = ingest.series("loss")
    assert sorted(series) == [0, 1, 2, 3, 5] and series[3] == series[5] == -1.0


def test_what_is_no_loss_of_this_model(ingest: IngestDouble) -> None:
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizer = sgd(model)
    losses = {}
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(STEPS):
            loss = loss_of(model)
            losses[step] = loss.item()
            loss_of(other).backward()
            loss.backward()
            (1000 * loss_of(other)).backward()
            model(torch.randn(3, 2)).backward(torch.zeros(3, 1))
            optimizer.step()
    assert ingest.series("loss") == losses


@pytest.mark.allow_faults
def test_a_backward_that_raises_is_the_loops_own(ingest: IngestDouble) -> None:
    def broken(gradient: Any) -> None:
        raise MemoryError("no room")

    model = nn.Linear(2, 1)
    optimizer = sgd(model)
    with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
        out = model(torch.ones(1, 2))
        out.register_hook(broken)
        with pytest.raises(MemoryError):
            out.sum().backward()
        optimizer.step()
        loss_of(model).backward()
        optimizer.step()
        assert not handle.stats()["faults"]
    assert sorted(ingest.series("loss")) == [1]


class Odd(torch.Tensor):
    """Counts what is asked of it, as another may draw random numbers or raise."""

    asked = 0

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked += 1
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.parametrize("logs", [False, True])
def test_nothing_is_asked_of_a_subclass(ingest: IngestDouble, logs: bool) -> None:
    model = nn.Linear(2, 1)
    optimizer = sgd(model)
    Odd.asked = 0
    torch.autograd.backward(loss_of(model).as_subclass(Odd))
    of_torch, Odd.asked = Odd.asked, 0
    losses = {}
    with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
        for step in range(STEPS):
            loss = loss_of(model)
            losses[step] = loss.item()
            torch.autograd.backward(loss.as_subclass(Odd))
            optimizer.step()
            if logs:
                handle.log(loss=loss.as_subclass(Odd))
    assert ingest.series("loss") == losses and Odd.asked == STEPS * of_torch


def test_two_parts_of_a_loss_each_with_a_backward_add_up(ingest: IngestDouble) -> None:
    """Without a forward between them: both end at the same parameter's gradient. Another model's backward is none."""
    body, heads, other = nn.Linear(2, 4), nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)]), nn.Linear(2, 1)
    model = nn.ModuleDict({"body": body, "heads": heads})
    optimizer, losses = sgd(model), {}
    rangewatch.attach(model, optimizer, url=ingest.url)
    for step in range(STEPS):
        hidden = body(torch.randn(3, 2))
        first, second = (head(hidden).pow(2).mean() for head in heads)
        first.backward(retain_graph=True)
        second.backward()
        loss_of(other).backward()
        losses[step] = first.item() + second.item()
        optimizer.step()
        optimizer.zero_grad()
    rangewatch.detach(model)
    assert ingest.series("loss") == pytest.approx(losses)
