"""A gradient that passes the limit of float16 by what the loss is multiplied by, and not by an operation."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch.wire.events import Optimizers, event
from rangewatch_server.rules.nonfinite import first_nonfinite
from rangewatch_server.rules.rule import Finding
from tests.server.rules.conftest import Recording, tensor

STEPS = 40
MODEL = [
    tensor("head", dtype="float16"), tensor("head", "grad_output", 1, "float16"),
    tensor("head.weight", "grad", 2, "float32"),
]  # fmt: skip


def found(recording: Recording, amax: float, at: int, **more: object) -> Finding:
    """The gradient of the weight holds Inf at step `at`, and `amax` is that of the output there."""
    sizes, counts = np.full((3, STEPS), 0.5), np.zeros((3, STEPS))
    sizes[1, at], counts[2, at] = amax, 5
    recording.write(MODEL, STEPS, {"amax": sizes, "inf_count": counts}, **more)
    (only,) = recording.diagnose(first_nonfinite.RULE).findings
    return only


@pytest.mark.parametrize("at", [0, 20])
def test_a_scale_of_its_own(recording: Recording, at: int) -> None:
    finding = found(recording, 5.8e4, at)
    assert (finding.step, finding.facts["cause_class"]) == (at, "backward_arithmetic")
    assert "GradScaler" in finding.remedy[0].text and not any("sqrt" in each.text for each in finding.remedy)


def test_a_step_that_the_scaler_was_to_leave_out(recording: Recording) -> None:
    finding = found(recording, 5.8e4, 0, series={"loss_scale": 1024.0, "skipped_step": 0.0}, loss_scaled=True)
    assert finding.facts["cause_class"] == "loss_scale" and "scaler.step(optimizer)" in finding.remedy[0].text


def test_far_below_the_limit_an_operation_made_it(recording: Recording) -> None:
    assert "sqrt" in found(recording, 5.0, 20).remedy[0].text


def test_the_scaler_does_not_see_what_no_optimizer_has(recording: Recording) -> None:
    known = event(Optimizers(("SGD",), left_out=("head.weight",), left_out_count=1, trainable_count=3), 1, 0)
    series = {"loss_scale": 1024.0, "skipped_step": 0.0}
    finding = found(recording, 5.8e4, 20, series=series, loss_scaled=True, events=[known])
    assert finding.facts["cause_class"] == "backward_arithmetic"
