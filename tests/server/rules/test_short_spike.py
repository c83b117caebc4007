"""A loss or gradient that is far above all before it for a moment, and healthy noise that is not."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch_server.rules.loss import loss_spike, short_spike
from tests.server.rules.conftest import Recording, tensor

NOISE = np.random.default_rng(3)
TENSORS = [tensor("embed"), tensor("head", call_index=1), tensor("head.weight", "grad", 2)]


def write(recording: Recording, loss: np.ndarray, gradient: np.ndarray | float = 1.0) -> None:
    amax = 2.0 ** NOISE.normal(0, 0.1, (3, len(loss)))
    amax[2] *= gradient
    recording.write(TENSORS, len(loss), {"amax": amax}, series={"loss": loss})


def noisy(steps: int) -> np.ndarray:
    return 2 + NOISE.normal(0, 0.1, steps)


@pytest.mark.parametrize("high", [1, 2])
@pytest.mark.parametrize("steps", [300, 3000], ids=["new", "old"])
def test_a_moment_is_told_to_the_end(recording: Recording, high: int, steps: int) -> None:
    loss = noisy(steps)
    loss[200 : 200 + high] = 7
    write(recording, loss)
    (found,) = recording.diagnose(short_spike.RULE).findings
    assert (found.step, found.severity, found.rank) == (200, "info", 0)
    assert found.facts["back_step"] == 200 + high and found.facts["cause_class"] == "data"
    assert f"was low again at step {200 + high}" in found.summary


def test_one_that_is_not_far_above_what_the_run_began_with(recording: Recording) -> None:
    loss = noisy(170) + 5 * np.exp(-np.arange(170) / 8)
    loss[110] = 8
    write(recording, loss)
    (found,) = recording.diagnose(short_spike.RULE).findings
    assert (found.step, found.severity) == (110, "info") and found.facts["highest_before"] < 3.5


def test_what_lasts_is_another_rule_s(recording: Recording) -> None:
    loss = noisy(300)
    loss[200:203] = 7
    write(recording, loss)
    (found,) = recording.diagnose(short_spike.RULE, loss_spike.RULE).findings
    assert found.rule == "loss_spike"


def test_while_it_lasts_nothing_is_said(recording: Recording) -> None:
    loss = noisy(201)
    loss[200] = 7
    write(recording, loss)
    assert recording.diagnose(short_spike.RULE).findings == ()


@pytest.mark.parametrize("kind", ["normal", "log-normal", "spiky", "falling"])
def test_healthy_noise(recording: Recording, kind: str) -> None:
    steps = 2000
    noise = {
        "normal": noisy(steps),
        "log-normal": 2.0 ** NOISE.normal(0, 0.5, steps),
        "spiky": noisy(steps) + 3 * (NOISE.random(steps) < 0.02),
        "falling": 5 * np.exp(-np.arange(steps) / 300) + 2.0 ** NOISE.normal(-3, 0.4, steps),
    }
    gradient = 2.0 ** NOISE.normal(0, 0.7, steps)
    write(recording, noise[kind], gradient)
    findings = recording.diagnose(short_spike.RULE).findings
    # The first of many that are as high is news when it comes.
    assert [each.step for each in findings] == ([] if kind != "spiky" else [each.step for each in findings[:1]])


def test_a_gradient_alone(recording: Recording) -> None:
    gradient = np.ones(300)
    gradient[250:253] = 200
    write(recording, noisy(300), gradient)
    (found,) = recording.diagnose(short_spike.RULE).findings
    assert (found.step, found.subject, found.facts["back_step"]) == (250, "gradient", 253)
    assert "the largest gradient was" in found.summary
