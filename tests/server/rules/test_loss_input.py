"""What a cross entropy is given, by the graph of the first loss."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch.wire import events
from rangewatch.wire.events import LossFunction
from rangewatch_server.rules.setup.loss_input import RULE
from tests.server.rules.conftest import Recording, tensor

STEPS = 120
LAYERS = [tensor("head.weight", "grad", 0, "float32")]
FLAT, FALLS = np.full(STEPS, 2.3), np.linspace(2.3, 0.1, STEPS)


@pytest.mark.parametrize(
    ("known", "loss", "severity"),
    [
        (LossFunction("nll", 10, "Softmax"), FLAT, "warning"),
        (LossFunction("nll", 10, "Softmax"), FALLS, "info"),
        (LossFunction("bce", 2, "Sigmoid"), FLAT, "warning"),
        (LossFunction("nll", 10, "Relu"), FLAT, "info"),
        (LossFunction("nll", 10, "Raw"), -FALLS, "warning"),
        (LossFunction("nll", 10, "Probabilities"), -FLAT, "warning"),
        (LossFunction("nll", 10, is_negated=True), -FLAT, "warning"),
        (LossFunction("bce", 2, is_negated=True), -FLAT, "info"),
        (LossFunction("nll", 10), FLAT, None),
        (LossFunction("mse", target_rms=3.0), FLAT, None),
    ],
)  # fmt: skip
def test_what_is_said(recording: Recording, known: LossFunction, loss: np.ndarray, severity: str | None) -> None:
    recording.write(LAYERS, STEPS, series={"loss": loss}, events=[events.event(known, 1, 0)])
    found = recording.diagnose(RULE).findings
    assert [(each.step, each.severity, each.facts["cause_class"]) for each in found] == (
        [(0, severity, "forward_arithmetic")] if severity else []
    )


def test_the_least_loss_of_a_softmax_before_another(recording: Recording) -> None:
    event = events.event(LossFunction("nll", 10, "Softmax"), 1, 0)
    recording.write(LAYERS, STEPS, series={"loss": FLAT}, events=[event])
    (found,) = recording.diagnose(RULE).findings
    assert any("cannot fall below 1.46" in each for each in found.evidence)
