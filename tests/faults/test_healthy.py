"""Healthy trainings are not told of: nothing critical and no warning, at any step that is asked about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.conftest import asked
from tests.faults.fault import Job
from tests.faults.healthy import SCRIPTS, Healthy, Script, healthy, stops
from tests.server.process import Run

STEPS, SOAK_STEPS = 120, 400
QUICK_SCRIPTS = ("healthy nanogpt, sdpa, clipped at each step", "healthy gan, BatchNorm, evaluated")
QUICK_SEEDS = (0, 2)
"""Of those whose steps are short."""


def trainings() -> Iterator[Any]:
    for each in healthy(6):
        yield pytest.param(each, STEPS, id=each.name, marks=[] if each.seed in QUICK_SEEDS else [pytest.mark.slow])
    for each in healthy(50):
        marks = [pytest.mark.soak, pytest.mark.timeout(600)]
        yield pytest.param(each, SOAK_STEPS, id=f"{each.name}, {SOAK_STEPS} steps", marks=marks)


def test_no_two_are_alike() -> None:
    assert len({each.name for each in healthy(50)}) == 50
    assert len({(each.model, each.precision, each.optimizer) for each in healthy(50)}) == 50


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("training", "steps"), list(trainings()))
def test_a_healthy_training_is_quiet(training: Healthy, steps: int, run: Run) -> None:
    training.train(run.server.url, steps, run.name)
    check(run, steps)


def check(run: Run, steps: int) -> None:
    ask = asked(run)
    for stop in stops(steps):
        answer = ask(stop)
        assert not answer["failed"]
        loud = [each for each in answer["findings"] if each["severity"] != "info"]
        assert loud == [], f"before step {stop}: {[each['summary'] for each in loud]}"


def scripts() -> Iterator[Any]:
    for each in SCRIPTS:
        if each.ranks == 1:
            yield pytest.param(each, id=each.name, marks=[] if each.name in QUICK_SCRIPTS else [pytest.mark.slow])


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:.*should not be instantiated.*:DeprecationWarning")  # torch 2.13's own, in dynamo
@pytest.mark.parametrize("script", list(scripts()))
def test_a_healthy_script_is_quiet(script: Script, run: Run) -> None:
    steps = STEPS if script.name in QUICK_SCRIPTS else SOAK_STEPS
    if script.family == "trainer":
        pytest.importorskip("transformers")
    script.train(Job(run.server.url, run.name), steps)
    check(run, steps)
