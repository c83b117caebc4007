"""A model that is trained while all of it is in evaluation mode."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
import torch
from torch import nn

import rangewatch
from rangewatch.steps.evaluation.training_mode import LASTING, MODULES_A_STEP, FrozenParts, Search
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
    return list(lasting([(each.step, each.data) for each in ingest.events("evaluation_mode")]))


def lasting(events: list[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Without what is reported of spells that may be over at once."""
    is_lasting = False
    for step, data in events:
        if data["steps"] >= LASTING or (is_lasting and not data["steps"]):
            yield step, data
        is_lasting = data["steps"] >= LASTING


def left(model: nn.Module, step: int) -> None:
    if step == 5:
        model.eval()


def test_a_model_that_is_left_in_eval(ingest: IngestDouble) -> None:
    ((step, data),) = train(ingest, left)
    assert (step, data) == (12, {"steps": 8, "dropouts": 1, "norms": 1, "was_trained": True, "where": ""})


def test_one_that_was_in_eval_for_two_steps_many_times_before(ingest: IngestDouble) -> None:
    ((step, data),) = train(ingest, lambda model, step: model.train(step < 80 and step % 4 < 2), steps=96)
    assert (step, data["steps"]) == (85, 8)


def test_the_part_that_is_trained_is_named(ingest: IngestDouble) -> None:
    """Its body is in eval() by plan."""
    body = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.1)).requires_grad_(False)
    head = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))

    def mode(model: nn.Module, step: int) -> None:
        model[0].eval()
        left(model, step)

    ((_, data),) = train(ingest, mode, nn.Sequential(body, nn.ModuleDict({"head": head})["head"]))
    assert (data["norms"], data["where"]) == (1, "1")


def test_a_head_that_is_trained_alone_is_meant(ingest: IngestDouble) -> None:
    body = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8)).requires_grad_(False)
    assert train(ingest, lambda model, step: model.eval(), nn.Sequential(body, nn.Linear(8, 2))) == []


def test_one_that_is_set_back(ingest: IngestDouble) -> None:
    def set_back(model: nn.Module, step: int) -> None:
        left(model, step)
        if step == 16:
            model.train()

    assert [(step, data["steps"]) for step, data in train(ingest, set_back)] == [(12, 8), (16, 0)]


def test_a_change_of_mode_is_reported_at_once(ingest: IngestDouble) -> None:
    """It may explain a jump. Of a model that was in eval() from the start nothing has changed."""
    train(ingest, one_evaluation)
    assert [(each.step, each.data["steps"]) for each in ingest.events("evaluation_mode")] == [(6, 2), (7, 0)]
    train(ingest, lambda model, step: model.eval())
    assert [each.data["steps"] for each in ingest.events("evaluation_mode")][2:] == [8]


def one_evaluation(model: nn.Module, step: int) -> None:
    model.train(step not in (5, 6))


def frozen_norms(model: nn.Module, step: int) -> None:
    """Their statistics were loaded."""
    model[1].eval().running_mean.fill_(0.1)


def made_and_frozen(model: nn.Module, step: int) -> None:
    model[1].eval()


@pytest.mark.parametrize(
    ("mode", "found"), [(made_and_frozen, {7: 1.0}), (frozen_norms, {7: 0.0}), (one_evaluation, {})]
)
def test_norms_that_stand_still_as_they_were_made(ingest: IngestDouble, mode: Set, found: dict[int, float]) -> None:
    assert train(ingest, mode) == []
    assert ingest.series("untrained_norms") == found


@pytest.mark.parametrize("is_frozen", [True, False], ids=["no parameter requires a gradient", "none gets one"])
def test_norms_of_a_target_that_is_made_by_chance(ingest: IngestDouble, is_frozen: bool) -> None:
    """It has nothing else to go by, and no norm of its own parameters if `is_frozen`."""

    class Distilled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            norm = nn.BatchNorm1d(8, affine=not is_frozen)
            self.target = nn.Sequential(nn.Linear(3, 8), norm).requires_grad_(not is_frozen).eval()
            self.learner = nn.Linear(3, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                target = self.target(x)
            return self.learner(x) - target

    train(ingest, lambda model, step: None, Distilled())
    assert ingest.series("untrained_norms") == {}


def test_an_idle_norm_without_parameters_is_as_frozen_as_what_it_is_in(ingest: IngestDouble) -> None:
    body = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8, affine=False)).requires_grad_(False)
    assert train(ingest, lambda model, step: model.eval(), nn.Sequential(body, nn.Linear(8, 2))) == []


def frozen_with_their_weights(model: nn.Module, step: int) -> None:
    model[1].requires_grad_(False).eval()


def evaluated(model: nn.Module, step: int) -> None:
    """With a backward, as for a map of what it looks at."""
    model.eval()
    model(torch.ones(4, 3)).sum().backward()
    model.train()


@pytest.mark.parametrize("mode", [frozen_norms, frozen_with_their_weights, evaluated, one_evaluation])
def test_modes_that_are_meant(ingest: IngestDouble, mode: Set) -> None:
    assert train(ingest, mode) == []


def test_a_model_that_does_the_same_in_both_modes(ingest: IngestDouble) -> None:
    assert train(ingest, left, nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Dropout(0.0))) == []


class Taught(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.student = nn.Linear(3, 1)
        self.teacher.requires_grad_(False).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.student(x) - self.teacher(x)


def taught(ingest: IngestDouble, mode: Set, steps: int = 40) -> list[tuple[int, object]]:
    train(ingest, mode, Taught(), steps)
    return [(each.step, each.data) for each in ingest.events("frozen_in_train")]


def all_trained(model: nn.Module, step: int) -> None:
    if step == 12:
        model.train()


def test_a_frozen_part_that_comes_into_train(ingest: IngestDouble) -> None:
    expected = {"steps": 8, "fqn": "teacher", "parts": 1, "dropouts": 1, "norms": 1}
    assert taught(ingest, all_trained) == [(19, expected)]


def test_a_frozen_part_that_is_set_back(ingest: IngestDouble) -> None:
    def set_back(model: nn.Module, step: int) -> None:
        all_trained(model, step)
        if step == 30:
            model.get_submodule("teacher").eval()

    assert [(step, data["steps"]) for step, data in taught(ingest, set_back)] == [(19, 8), (30, 0)]


def test_a_frozen_part_that_is_unfrozen(ingest: IngestDouble) -> None:
    def unfrozen(model: nn.Module, step: int) -> None:
        all_trained(model, step)
        if step == 30:
            model.get_submodule("teacher").requires_grad_(True)

    (_, first), (step, last) = taught(ingest, unfrozen)
    assert (first["steps"], last["steps"]) == (8, 0) and 30 <= step < 38


def test_a_frozen_part_that_is_taken_away() -> None:
    model, known = Taught(), []
    parts = FrozenParts(model, SimpleNamespace(add=known.append))
    for step in range(140):
        if step == 12:
            model.teacher.train()
        if step == 30:
            teacher, model.teacher = model.teacher, nn.Identity()
        parts.end_step()
    assert [each.steps for each in known] == [8, 0] and not teacher[0].weight.requires_grad


def test_a_search_is_spread_over_steps_and_finds_the_outermost() -> None:
    """One whole layer, and of each other one the norm inside a wrapper."""
    layers = [nn.Sequential(nn.Linear(1, 1), nn.Module(), nn.Sequential(nn.BatchNorm1d(1))) for _ in range(400)]
    model = nn.ModuleList(layers)
    layers[7].requires_grad_(False)
    layers[90][2].requires_grad_(False)
    layers[399][2].requires_grad_(False)
    search = Search(model)
    steps = 0
    while (result := search.proceed()) is None:
        steps += 1
    assert [each.fqn for each in result] == ["7", "90.2", "399.2"]
    assert [each.watched() for each in result] == [layers[at][2][0] for at in (7, 90, 399)]
    assert steps == 2001 // MODULES_A_STEP


def test_a_model_that_goes_during_a_search_is_let_go() -> None:
    model = nn.ModuleList(nn.Linear(1, 1) for _ in range(2 * MODULES_A_STEP))
    search, is_alive = Search(model), ref(model[-1])
    assert search.proceed() is None
    del model
    gc.collect()
    assert is_alive() is None and [search.proceed() for _ in range(3)][-1] == []


def always_in_train(model: nn.Module, step: int) -> None:
    model.train()


def few_steps(model: nn.Module, step: int) -> None:
    model.get_submodule("teacher").train(step in (12, 13, 14))


def thawed(model: nn.Module, step: int) -> None:
    all_trained(model, step)
    if step == 12:
        model.get_submodule("teacher").requires_grad_(True)


@pytest.mark.parametrize("mode", [always_in_train, few_steps, thawed])
def test_frozen_parts_as_they_should_be(ingest: IngestDouble, mode: Set) -> None:
    assert taught(ingest, mode) == []
