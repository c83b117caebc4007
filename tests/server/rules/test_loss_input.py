"""What a cross entropy is given, by the graph of the first loss."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch.wire import events
from rangewatch.wire.events import LossFunction, Optimizers
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
        (LossFunction("ctc", given="Probabilities"), -FALLS, "warning"),
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


AT = np.arange(160)


@pytest.mark.parametrize(
    ("loss", "count"),
    [
        (-1.5 * 1.2**AT, 1),
        (900.0 - 90.0 * AT, 0),
        (5e3 - 2e2 * AT**1.5, 0),
        (np.where(AT < 40, -(10.0 ** (AT / 8)), -1e5), 0),
        (1.5 * 1.2**AT, 0),
        (-1.5 * 1.2 ** AT[:100], 0),
    ],
    ids=["falls by a power", "falls as far as it was", "a density of many numbers", "stays there", "grows", "short"],
)
def test_a_loss_that_falls_below_zero_without_bound(recording: Recording, loss: np.ndarray, count: int) -> None:
    recording.write(LAYERS, len(loss), series={"loss": loss})
    found = recording.diagnose(RULE).findings
    assert [(each.step, each.severity, each.subject) for each in found] == [(0, "warning", "unbounded")] * count
    assert all("sign of each term" in each.remedy[0].text for each in found)


@pytest.mark.parametrize(
    ("known", "loss", "subjects"),
    [
        (LossFunction("nll", 10), FLAT, ["maximised"]), (LossFunction("mse", target_rms=3.0), FLAT, ["maximised"]),
        (LossFunction("nll", 10, is_negated=True), -FALLS, []),
    ],
    ids=["a cross entropy", "squared differences", "minus a cross entropy"],
)  # fmt: skip
def test_an_optimizer_that_maximises(
    recording: Recording, known: LossFunction, loss: np.ndarray, subjects: list[str]
) -> None:
    sent = [events.event(known, 1, 0), events.event(Optimizers(("SGD",), maximizes=True), 1, 2)]
    recording.write(LAYERS, STEPS, series={"loss": loss}, events=sent)
    found = recording.diagnose(RULE).findings
    assert [(each.subject, each.facts["cause_class"]) for each in found] == [(each, "optimizer") for each in subjects]
