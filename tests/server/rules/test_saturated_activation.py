"""Activations at the flat ends of their curve."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch_server.rules.activations.saturated_activation import RULE
from tests.server.rules.conftest import Recording, tensor

MEASURED = (np.arange(350) % 100 == 0).astype(float)


def write(
    recording: Recording, module: str, mean_square: Any, fqn: str = "blocks.0.act", every: float = 1.0, **more: Any
) -> None:
    full = {"full_numel": 32 * MEASURED, "sum_sq": 32 * mean_square * MEASURED}
    recording.write([tensor(fqn, module=module)], 350, {"amax": every, **full}, **more)


@pytest.mark.parametrize("module", ["Tanh", "Sigmoid"])
def test_a_flat_curve_is_told(recording: Recording, module: str) -> None:
    write(recording, module, 0.999)
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.rank, found.step) == ("blocks.0.act", 0, 0)
    assert found.facts["mean_slope"] == pytest.approx(0.001)
    assert "in all measurements" in found.evidence[1] and "begin with smaller weights" in found.remedy[0].text


def test_it_began_in_the_run(recording: Recording) -> None:
    steps = np.arange(350)
    full = {"full_numel": 32 * MEASURED, "sum_sq": 32 * np.where(steps < 100, 0.5, 0.999) * MEASURED}
    recording.write([tensor("act", module="Tanh")], 350, {"amax": 1.0, **full})
    (found,) = recording.diagnose(RULE).findings
    assert (found.step, found.facts["latest_step"]) == (64, 127), "measured at 100"
    assert "since a step from 64 to 127" in found.evidence[1] and "before step 64" in found.remedy[0].text


def test_what_the_model_is_given_is_large(recording: Recording) -> None:
    write(recording, "Tanh", 0.999, series={"input_rms": 5e4})
    (found,) = recording.diagnose(RULE).findings
    assert found.remedy[0].text.startswith("Normalise what the model is given, whose root mean square is 5e+04")


@pytest.mark.parametrize(
    ("module", "mean_square"), [("Tanh", 0.97), ("Sigmoid", 0.5), ("ReLU", 0.999), ("Hardtanh", 1.0)]
)
def test_others_are_quiet(recording: Recording, module: str, mean_square: float) -> None:
    write(recording, module, mean_square)
    assert recording.diagnose(RULE).findings == ()


def test_two_measurements_are_not_enough(recording: Recording) -> None:
    write(recording, "Tanh", 0.999)
    assert recording.diagnose(RULE, stop=200).findings == ()


def test_a_sigmoid_that_lets_nothing_through(recording: Recording) -> None:
    write(recording, "Sigmoid", 1e-8, every=2.0**-9)
    (found,) = recording.diagnose(RULE).findings
    assert f"since step {found.step} or before" in found.evidence[1], "of the steps before none was looked at"
    assert "checkpoint" not in found.remedy[0].text


def test_one_hot_attention(recording: Recording) -> None:
    write(recording, "Softmax", 0.9999 / 8, "blocks.0.attn.softmax")  # rows of 8
    (found,) = recording.diagnose(RULE).findings
    assert found.tensor == "blocks.0.attn.softmax"


@pytest.mark.parametrize(
    ("fqn", "mean_square"), [("head.softmax", 1 / 8), ("attn.softmax", 0.5 / 8), ("attn.softmax", 0.2)]
)
def test_a_sure_classifier_and_other_rows_are_quiet(recording: Recording, fqn: str, mean_square: float) -> None:
    write(recording, "Softmax", mean_square, fqn)
    assert recording.diagnose(RULE).findings == ()


def test_nothing_measured(recording: Recording) -> None:
    recording.write([tensor("a", module="Tanh")], 350, {"amax": 1.0})
    assert recording.diagnose(RULE).findings == ()
