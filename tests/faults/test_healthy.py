"""Healthy trainings are not told of: nothing critical and no warning, at any step that is asked about."""

from __future__ import annotations

import os

import pytest

from tests.faults.conftest import Runs
from tests.faults.healthy import Healthy, healthy, stops

SOAK = bool(os.environ.get("RANGEWATCH_SOAK"))
STEPS = 400 if SOAK else 120
TRAININGS = list(healthy(50 if SOAK else 6))


def test_no_two_are_alike() -> None:
    assert len({each.name for each in healthy(50)}) == 50
    assert len({(each.model, each.precision, each.optimizer) for each in healthy(50)}) == 50


@pytest.mark.timeout(300)
@pytest.mark.parametrize("training", TRAININGS, ids=[each.name for each in TRAININGS])
def test_a_healthy_training_is_quiet(training: Healthy, runs: Runs) -> None:
    training.train(runs.url, STEPS)
    ask = runs.ask(training.name)
    for stop in stops(STEPS):
        answer = ask(stop)
        assert not answer["failed"]
        loud = [each for each in answer["findings"] if each["severity"] != "info"]
        assert loud == [], f"before step {stop}"
