"""Learning rates that a schedule has made next to nothing, and what looks like them."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch_server.rules.loss import schedule_over
from tests.faults.families.resumes import Plan, cosine, decays, falls, linear, periodic, stairs
from tests.server.rules.conftest import Recording, tensor

STEPS = 400


@pytest.mark.parametrize(
    ("plan", "step", "severity"),
    [
        (decays(0.9), 66, "warning"),
        (decays(0.95), 135, "warning"),
        (lambda n: 0.5 ** (n // 9), 90, "warning"),
        (lambda n: max(0.0, 1 - n / 100) ** 8 + 1e-30 * (400 - n), 58, "warning"),
        (stairs(40, 90, 150, 200, 390), 150, "info"),
        (decays(0.98), None, ""), (decays(0.9, 5e-4), None, ""), (decays(0.9, 2e-3), None, ""),
        (stairs(60, 100, 140), None, ""), (falls(100, 1e-4), None, ""), (cosine(20, 390), None, ""),
        (linear(30, 380), None, ""), (periodic(150), None, ""), (lambda n: 1.0, None, ""), (lambda n: 0.0, None, ""),
        (lambda n: max(0.0, 1 - n / 100), None, ""),
        (lambda n: 1.0 if n < 1 else 1e-4 * (1 + n) ** -0.5, None, ""),  # another rate in the first step
    ],
)  # fmt: skip
def test_rates_that_are_next_to_nothing(recording: Recording, plan: Plan, step: int | None, severity: str) -> None:
    lr = 1e-3 * np.array([plan(each) for each in range(STEPS)])
    recording.write([tensor("head.weight", "grad", 0)], STEPS, series={"loss": np.ones(STEPS), "lr": lr})
    found = recording.diagnose(schedule_over.RULE).findings
    assert [(each.step, each.severity) for each in found] == ([(step, severity)] if severity else [])


def test_another_stage_with_a_schedule_of_its_own(recording: Recording) -> None:
    at = np.arange(STEPS)
    lr = np.where(at < 150, 0.5, 4e-4 * np.clip(1 - (at - 150) / 250, 0, 1))
    recording.write([tensor("head.weight", "grad", 0)], STEPS, series={"loss": np.ones(STEPS), "lr": lr})
    assert not recording.diagnose(schedule_over.RULE).findings


@pytest.mark.parametrize(("end", "count"), [(0.5, 0), (0.97, 1)])
def test_a_loss_that_goes_on_falling(recording: Recording, end: float, count: int) -> None:
    at = np.arange(STEPS)
    loss = np.where(at < 66, 1.0, np.linspace(1.0, end, STEPS))
    recording.write([tensor("head.weight", "grad", 0)], STEPS, series={"loss": loss, "lr": 1e-3 * 0.9**at})
    assert len(recording.diagnose(schedule_over.RULE).findings) == count


def test_of_a_long_run(recording: Recording) -> None:
    steps = 20_000
    lr = 1e-3 * 0.999 ** np.arange(steps)
    recording.write([tensor("head.weight", "grad", 0)], steps, series={"loss": np.ones(steps), "lr": lr})
    (found,) = recording.diagnose(schedule_over.RULE).findings
    assert found.step == 6905
    assert any("factor 0.999 " in each for each in found.evidence)


def test_a_rate_that_is_logged_now_and_then(recording: Recording) -> None:
    lr = np.where(np.arange(STEPS) % 10, np.nan, 1e-3 * 0.9 ** np.arange(STEPS))
    recording.write([tensor("head.weight", "grad", 0)], STEPS, series={"loss": np.ones(STEPS), "lr": lr})
    (found,) = recording.diagnose(schedule_over.RULE).findings
    assert 60 <= found.step <= 70


@pytest.mark.parametrize(
    ("every", "falls_until", "severity"), [(15, 100, "warning"), (1, 100, None), (15, 0, None)],
    ids=["while the loss falls", "at each step", "of a loss that is at its end"],
)  # fmt: skip
def test_a_rate_that_falls_after_as_many_steps_each_time(
    recording: Recording, every: int, falls_until: int, severity: str | None
) -> None:
    """As where a loss that falls is taken for what should rise: half as long is enough."""
    at = np.arange(200)
    lr = 1e-2 * 0.5 ** (at // 15) if every > 1 else 1e-2 * 0.955**at
    loss = 0.2 + 0.98 ** np.minimum(at, falls_until)
    recording.write([tensor("head.weight", "grad", 0)], 200, series={"loss": loss, "lr": lr})
    assert [each.severity for each in recording.diagnose(schedule_over.RULE).findings] == [severity] * bool(severity)


@pytest.mark.parametrize(
    ("every", "factor", "falls_until"), [(20, 0.5, 0), (60, 0.1, 400)], ids=["plateaus", "milestones as far apart"]
)
def test_falls_that_are_even_and_meant(recording: Recording, every: int, factor: float, falls_until: int) -> None:
    """A loss that is at its end is one plateau behind the other."""
    at = np.arange(STEPS)
    loss = 0.2 + 0.98 ** np.minimum(at, falls_until)
    series = {"loss": loss, "lr": 1e-2 * factor ** (at // every)}
    recording.write([tensor("head.weight", "grad", 0)], STEPS, series=series)
    assert [each.severity for each in recording.diagnose(schedule_over.RULE).findings] == ["info"]
