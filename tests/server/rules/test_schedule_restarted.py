"""Learning rates that are once more what they were, on purpose or not."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch.wire import events
from rangewatch_server.rules.loss import schedule_restarted
from rangewatch_server.rules.loss.schedule_restarted import find
from tests.faults.families import resumes
from tests.faults.families.resumes import Plan, cosine, linear, replayed
from tests.server.rules.conftest import Recording, tensor

LAYERS = [tensor("head.weight", "grad", 0)]
STEPS = 200


def course(plan: Plan) -> np.ndarray:
    return 1e-3 * np.array([plan(step) for step in range(STEPS)])


def severities(recording: Recording, rates: np.ndarray, **series: np.ndarray) -> list[str]:
    recording.write(LAYERS, STEPS, series={"loss": np.ones(STEPS), "lr": rates} | series)
    return [each.severity for each in recording.diagnose(schedule_restarted.RULE).findings]


@pytest.mark.parametrize(
    ("plan", "severity"),
    [
        (replayed(cosine(60, 400), 120, 10), "warning"),
        (replayed(linear(40, 300), 100, 0), "info"),
        (replayed(cosine(60, 400), 60, 58), ""),  # hardly a jump
        (lambda n: 1.0 if n < 100 else 0.1, ""),  # no schedule at all
        (resumes.saw(50), ""), (resumes.saw(50, phase=20), ""), (resumes.cycles(50, 10), ""),
        (resumes.rewarmed(60, 20), ""), (resumes.stages(100, 25, 0.5), ""), (cosine(40, 300), ""),
    ],
)  # fmt: skip
def test_within_one_process(recording: Recording, plan: Plan, severity: str) -> None:
    assert severities(recording, course(plan)) == [severity] * bool(severity)


def test_epochs_that_are_counted_for_steps(recording: Recording) -> None:
    """The scheduler is made anew in each of them: a warm-up that never gets far."""

    def plan(step: int) -> float:
        epoch, place = divmod(step, 20)
        return min(1.0, (1 + place + (1 + epoch if epoch else 0)) / 100) ** 2

    recording.write(LAYERS, STEPS, series={"loss": np.ones(STEPS), "lr": course(plan)})
    (finding,) = recording.diagnose(schedule_restarted.RULE).findings
    assert (finding.severity, finding.step, finding.facts["earlier_step"]) == ("warning", 20, 2)
    assert "each jump after it begins one step further on" in finding.evidence[0]


def test_stages_that_begin_lower_each_are_meant(recording: Recording) -> None:
    """All decay by one factor: each goes on as the first one did some steps further on."""
    assert severities(recording, course(lambda step: 0.95 ** (step % 60 + 10 * (step // 60)))) == []


@pytest.mark.parametrize(
    ("warm_up", "since", "is_loaded", "severity"),
    [(0, 7, True, "warning"), (0, 7, False, "info"), (0, 0, True, ""), (20, 20, True, ""), (20, 27, False, "info")],
)
def test_a_fall_that_goes_on_from_near_its_peak(
    recording: Recording, warm_up: int, since: int, is_loaded: bool, severity: str
) -> None:
    """One that goes on from the peak itself is a warm restart's."""
    rates = course(replayed(cosine(warm_up, 240), 120, since))
    loaded = [events.event(events.StateLoaded("SGD"), 1, 120)] if is_loaded else []
    recording.write(LAYERS, STEPS, series={"loss": np.ones(STEPS), "lr": rates}, events=loaded)
    assert [each.severity for each in recording.diagnose(schedule_restarted.RULE).findings] == [severity] * bool(
        severity
    )


@pytest.mark.parametrize(
    ("is_loaded", "height", "is_told"), [(True, 1.0, True), (False, 1.0, False), (True, 0.5, False)]
)
def test_a_rate_at_its_peak_with_a_saved_state(
    recording: Recording, is_loaded: bool, height: float, is_told: bool
) -> None:
    """The first day warmed up, the second does not: none of its rates came before."""

    def plan(step: int) -> float:
        return cosine(20, 180)(step) if step < 150 else height * cosine(0, 240)(step - 150)

    loaded = [events.event(events.StateLoaded("Adam"), 1, 150)] if is_loaded else []
    recording.write(LAYERS, STEPS, series={"loss": np.ones(STEPS), "lr": course(plan)}, events=loaded)
    found = recording.diagnose(schedule_restarted.RULE).findings
    assert [(each.severity, each.step) for each in found] == [("info", 150)] * is_told


def test_a_snapshot_brings_its_rate_along(recording: Recording) -> None:
    written = np.where(np.arange(STEPS) == 80, 0.5, 0.0)
    assert severities(recording, course(replayed(linear(100, 500), 80, 20)), weights_written=written) == []


@pytest.mark.parametrize("since", [1, 2, 30])
def test_where_another_process_takes_over(recording: Recording, since: int) -> None:
    rates = course(replayed(cosine(2, 260), 150, since))
    recording.write(LAYERS, 150, series={"lr": rates[:150]})
    recording.write(LAYERS, 50, series={"lr": rates[150:]}, first=150, incarnation="second")
    (finding,) = recording.diagnose(schedule_restarted.RULE).findings
    assert (finding.severity, finding.step, finding.rank) == ("warning", 150, 0)
    assert finding.facts["earlier_step"] == since and "load_state_dict" in finding.remedy[0].code


@pytest.mark.parametrize(("lowest", "severity"), [(0.1, "info"), (0.4, "warning")])
def test_a_cycle_that_has_ended_where_another_process_takes_over(
    recording: Recording, lowest: float, severity: str
) -> None:
    """As SGDR's snapshots are saved at the ends of cycles, and trained on from there."""
    rates = course(lambda step: 1 - (1 - lowest) * (step % 120) / 119)
    recording.write(LAYERS, 120, series={"lr": rates[:120]})
    recording.write(LAYERS, 80, series={"lr": rates[120:]}, first=120, incarnation="second")
    (finding,) = recording.diagnose(schedule_restarted.RULE).findings
    assert (finding.severity, finding.step) == (severity, 120)
    assert severity == "warning" or "warm restart" in finding.evidence[1]


def test_rates_that_are_logged_now_and_then_say_nothing() -> None:
    rates = course(replayed(cosine(60, 400), 120, 10))
    assert find(0, np.where(np.arange(STEPS) % 10, np.nan, rates)) is None
    assert find(0, np.zeros(0)) is find(0, np.zeros(STEPS)) is find(0, np.full(STEPS, -1.0)) is None
