"""A learning rate that begins far above what its schedule was given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire.events import Optimizers, event
from rangewatch_server.rules.loss import schedule_begins_high, schedule_restarted
from tests.server.rules.conftest import Recording, tensor

STEPS = 120
AT = np.arange(STEPS)
UPSIDE_DOWN = 1e-3 * np.maximum(1.0, 60 / (1 + AT))
HARMED, UNHARMED = np.where(AT < 5, 2.3 + AT, 2.3), np.linspace(2.3, 0.5, STEPS)


def found(recording: Recording, rate: Any, loss: Any = HARMED, initial: float = 1e-3, **series: Any) -> Any:
    known = [event(Optimizers(("AdamW",), initial_lr=initial), 1, 2)]
    layer = [tensor("a.weight", "grad", 0, "float32")]
    recording.write(layer, STEPS, series={"lr": rate, "loss": loss, **series}, events=known)
    return recording.diagnose(schedule_begins_high.RULE).findings


@pytest.mark.parametrize(("loss", "severity"), [(HARMED, "warning"), (UNHARMED, "info")])
def test_a_warm_up_that_is_upside_down(recording: Recording, loss: Any, severity: str) -> None:
    (finding,) = found(recording, UPSIDE_DOWN, loss)
    assert (finding.severity, finding.step, finding.facts["cause_class"]) == (severity, 0, "learning_rate")
    assert "begins at 0.06, 60 times the 0.001 that its schedule was given" in finding.summary
    assert recording.diagnose(schedule_restarted.RULE).findings == (), "no rate starts over at its own beginning"


def test_a_harder_batch_is_no_harm(recording: Recording) -> None:
    (finding,) = found(recording, UPSIDE_DOWN, np.where(AT % 9 == 4, 3.0, 2.3))
    assert finding.severity == "info" and "did not rise" in finding.evidence[1]


def test_a_loss_that_is_logged_now_and_then(recording: Recording) -> None:
    layer, known = [tensor("a.weight", "grad", 0, "float32")], [event(Optimizers(("AdamW",), initial_lr=1e-3), 1, 2)]
    for number, at in enumerate(AT.tolist()):
        logged = {"lr": UPSIDE_DOWN[at], **({"loss": UNHARMED[at]} if at % 5 == 0 else {})}
        recording.write(layer, 1, series=logged, events=known if at == 2 else [], first=at, sequence=number)
    (finding,) = recording.diagnose(schedule_begins_high.RULE).findings
    assert finding.severity == "info" and "did not rise" in finding.evidence[1]


def test_a_loss_that_is_no_longer_finite(recording: Recording) -> None:
    (finding,) = found(recording, UPSIDE_DOWN, np.where(AT < 5, 2.3, np.inf))
    assert finding.severity == "warning"


@pytest.mark.parametrize(
    "given",
    [
        {"rate": 1e-3 * np.minimum(1.0, (1 + AT) / 60)},  # a warm-up
        {"rate": 1e-3 * np.cos(np.pi * AT / 2 / STEPS)},
        {"rate": 1e-3 * (1 + 24 * np.sin(np.pi * AT / STEPS))},  # one cycle
        {"rate": 1e-3 * (5 - 4 * AT / STEPS)},  # it hardly falls
        {"rate": UPSIDE_DOWN, "initial": 0.0},  # no schedule of torch's
        {"rate": UPSIDE_DOWN, "lr_group_0": 1e-3, "lr_group_1": UPSIDE_DOWN},  # a group alone, as biases in YOLO
    ],
)
def test_schedules_that_are_usual(recording: Recording, given: dict[str, Any]) -> None:
    assert found(recording, **given) == ()
