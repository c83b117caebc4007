"""Cosine schedules that are moved past their end, and what looks like them."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch_server.rules.loss import schedule_turned
from rangewatch_server.rules.loss.schedule_turned import LASTING, find
from tests.faults.families.resumes import Plan, cosine, cycles, linear, periodic, saw, triangles
from tests.server.rules.conftest import Recording, tensor

STEPS = 260


def course(plan: Plan, steps: int = STEPS) -> np.ndarray:
    return 1e-3 * np.array([plan(step) for step in range(steps)])


@pytest.mark.parametrize(
    ("plan", "step", "severity"),
    [
        (periodic(130), 130, "warning"),
        (periodic(100, warmup=20), 120, "warning"),
        (lambda n: periodic(100)(n + 0.5), 99, "warning"),  # type: ignore[arg-type]  # the end is between two steps
        (periodic(60), 60, "info"),  # it turns again at 180
        (periodic(130, floor=0.1), None, ""),
        (triangles(40, 0.001), None, ""), (cycles(65, 10), None, ""), (saw(50), None, ""),
        (cosine(20, 150), None, ""), (linear(30, 200), None, ""), (lambda n: 1.0, None, ""),
        (lambda n: max(0.0, 1 - n / 100) if n < 130 else (n - 130) / 100, None, ""),
    ],
)  # fmt: skip
def test_rates_that_climb_again(recording: Recording, plan: Plan, step: int | None, severity: str) -> None:
    recording.write([tensor("head.weight", "grad", 0)], STEPS, series={"loss": np.ones(STEPS), "lr": course(plan)})
    found = recording.diagnose(schedule_turned.RULE).findings
    assert [(each.step, each.severity) for each in found] == ([(step, severity)] if severity else [])


def test_of_a_run_that_is_long_the_end_is_searched_too(recording: Recording) -> None:
    steps = 9_000
    lr = course(periodic(8_500), steps)
    recording.write([tensor("head.weight", "grad", 0)], steps, series={"loss": np.ones(steps), "lr": lr})
    (found,) = recording.diagnose(schedule_turned.RULE).findings
    assert found.step == 8_500


def test_it_is_not_said_before_it_is_known() -> None:
    rates = course(periodic(100))
    assert find(0, rates[: 100 + LASTING]) is None
    turn = find(0, rates[: 102 + LASTING])
    assert turn is not None and turn.step == 100


def test_odd_rates_do_no_harm() -> None:
    every = np.arange(200)
    for values in (np.zeros(0), np.zeros(200), np.full(200, np.nan), np.where(every % 10, np.nan, 1e-3)):
        assert find(0, values) is None
