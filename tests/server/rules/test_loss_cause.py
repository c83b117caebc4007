"""A loss that is NaN or Inf where all outputs and gradients are finite: what is said of it, by what gradients were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire.events import LossGraph, SavedValue, TensorDetails, event
from rangewatch_server.rules import Finding
from rangewatch_server.rules.nonfinite import loss_nonfinite
from tests.server.rules.conftest import Recording, tensor

NOISE = np.random.default_rng(7)
STEPS, AT = 120, 100
EMBED, MLP, HEAD, GRAD = range(4)


def found(
    recording: Recording, value: float, *risen: tuple[int, float], dtype: str = "float32", module: str = "Linear",
    series: Any = None, events: Any = (), scale: float = 1.0, **columns: Any,
) -> Finding:  # fmt: skip
    """`risen`: a tensor, and times as high at the step."""
    tensors = [
        tensor("embed", call_index=0, dtype=dtype, module=module), tensor("mlp", call_index=1, dtype=dtype),
        tensor("head", call_index=2, dtype=dtype), tensor("head.weight", "grad", 3, dtype),
    ]  # fmt: skip
    amax = scale * 2.0 ** NOISE.normal(0, 0.1, (4, STEPS))
    for row, times in risen:
        amax[row, AT] *= times
    loss = 2 + NOISE.normal(0, 0.05, STEPS)
    loss[AT] = value
    recording.write(
        tensors, STEPS, {"amax": amax, **columns}, series={"loss": loss, **(series or {})}, events=list(events)
    )
    (finding,) = recording.diagnose(loss_nonfinite.RULE).findings
    assert finding.step == AT
    return finding


def advice(finding: Finding) -> str:
    return " ".join(f"{each.text} {each.because}" for each in finding.remedy)


def test_gradients_far_above_usual_with_usual_outputs_are_of_the_targets(recording: Recording) -> None:
    finding = found(recording, np.inf, (GRAD, 1e18))
    assert (finding.facts["cause_class"], finding.facts["sureness"]) == ("data", "shown")
    assert "targets of the batch of step 100" in advice(finding)
    assert "first to hold NaN" not in advice(finding)


def test_outputs_and_a_loss_that_had_blown_up_are_not_of_the_targets(recording: Recording) -> None:
    """Of the first module on, so that no single weight is to be blamed."""
    tensors = [
        tensor("embed", call_index=0), tensor("mlp", call_index=1), tensor("head", call_index=2),
        tensor("head.weight", "grad", 3),
    ]  # fmt: skip
    amax = 2.0 ** NOISE.normal(0, 0.1, (4, STEPS))
    amax[:3, AT - 1 :] *= 1e9
    amax[GRAD, AT - 2 :] *= 1e6
    loss = 2 + NOISE.normal(0, 0.05, STEPS)
    loss[AT - 1 : AT + 1] = 1e18, np.inf
    recording.write(tensors, STEPS, {"amax": amax}, series={"loss": loss})
    (finding,) = recording.diagnose(loss_nonfinite.RULE).findings
    assert finding.facts["cause_class"] == "learning_rate" and finding.facts["of_magnitude"]
    assert "The loss had blown up before: 1e+18 where 2" in " ".join(finding.evidence)
    assert "targets" not in advice(finding)


def test_a_loss_that_has_grown_since_the_run_began(recording: Recording) -> None:
    """For so long that what is large is usual by now."""
    tensors = [tensor("head", call_index=0), tensor("head.weight", "grad", 1)]
    amax = np.exp(np.linspace(0, 41, STEPS))[None].repeat(2, 0)
    loss = 2 * np.exp(np.linspace(0, 85, STEPS))
    loss[AT:] = np.inf
    recording.write(tensors, STEPS, {"amax": amax}, series={"loss": loss})
    (finding,) = recording.diagnose(loss_nonfinite.RULE).findings
    assert finding.facts["cause_class"] == "learning_rate"
    assert "near what is usual" not in " ".join(finding.evidence)
    assert "at first" in advice(finding) and "Take a mean" not in advice(finding)


def test_a_loss_that_has_grown_to_near_the_range_of_half(recording: Recording) -> None:
    """As a critic's without a bound."""
    loss = -np.linspace(100, 3e4, STEPS)
    loss[AT:] = -np.inf
    recording.write([tensor("head", call_index=0), tensor("head.weight", "grad", 1)], STEPS, series={"loss": loss})
    (finding,) = recording.diagnose(loss_nonfinite.RULE).findings
    assert finding.facts["cause_class"] == "learning_rate"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_loss_that_rises_slowly_has_not_blown_up(recording: Recording, value: float) -> None:
    """As a generator's does, whose critic learns."""
    tensors = [tensor("head", call_index=0), tensor("head.weight", "grad", 1)]
    loss = 0.1 + np.linspace(0, 2, STEPS)
    loss[AT:] = value
    recording.write(tensors, STEPS, series={"loss": loss})
    (finding,) = recording.diagnose(loss_nonfinite.RULE).findings
    assert finding.facts["cause_class"] == "forward_arithmetic"
    assert "blown up" not in advice(finding)


def test_usual_gradients_say_that_a_sum_overflowed(recording: Recording) -> None:
    finding = found(recording, np.inf, (GRAD, 8.0), dtype="float16")
    assert (finding.facts["cause_class"], finding.facts["sureness"]) == ("forward_arithmetic", "shown")
    assert "float32" in advice(finding) and "The output of head is float16" in " ".join(finding.evidence)
    assert "65504" in " ".join(finding.evidence)


def test_of_a_dtype_with_a_wide_range_it_is_likely_only(recording: Recording) -> None:
    finding = found(recording, np.inf)
    assert (finding.facts["cause_class"], finding.facts["sureness"]) == ("forward_arithmetic", "likely")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_outputs_far_below_the_limit_say_that_no_sum_of_them_overflowed(recording: Recording, dtype: str) -> None:
    finding = found(recording, np.inf, dtype=dtype)
    assert "a logarithm or a division of 0" in " ".join(finding.evidence)
    assert "Take a mean in place of a sum" not in advice(finding)


def test_outputs_whose_squares_may_pass_the_limit(recording: Recording) -> None:
    finding = found(recording, np.inf, scale=1e18)
    assert "a logarithm or a division of 0" not in " ".join(finding.evidence)


def test_the_operation_that_the_graph_of_the_loss_shows(recording: Recording) -> None:
    """A logarithm of 0 in rows that torch.where has put there: their gradient goes nowhere."""
    value = TensorDetails("self", "float32", 256, 0.4, 0, 0, zero_count=5, negative_count=0)
    graph = event(LossGraph(risky=(SavedValue("Log", "self", False, value),)), 1, AT)
    finding = found(recording, np.inf, events=[graph])
    assert (finding.facts["cause_class"], finding.facts["sureness"]) == ("forward_arithmetic", "shown")
    assert "a logarithm (Log) whose operand held 5 zeros" in " ".join(finding.evidence)
    assert "Keep what the logarithm is given above 0" in advice(finding)


def test_no_target_that_counts(recording: Recording) -> None:
    finding = found(recording, np.nan, (GRAD, 0.0))
    assert (finding.facts["cause_class"], finding.facts["sureness"]) == ("data", "shown")
    assert "ignore_index" in advice(finding)


def test_nan_with_usual_gradients(recording: Recording) -> None:
    finding = found(recording, np.nan)
    assert finding.facts["cause_class"] == "forward_arithmetic"
    assert "what was logged is not what backward was called on" in " ".join(finding.evidence)


def test_a_module_whose_output_had_left_its_band(recording: Recording) -> None:
    finding = found(recording, np.inf, (MLP, 1e30), (HEAD, 1e30), (GRAD, 1e30))
    assert (finding.facts["cause_class"], finding.tensor) == ("weight", "mlp")


def test_what_an_embedding_gives_is_its_weight(recording: Recording) -> None:
    finding = found(recording, np.inf, (EMBED, 1e30), (HEAD, 1e30), (GRAD, 1e30), module="Embedding")
    assert (finding.facts["cause_class"], finding.tensor) == ("weight", "embed")


def test_a_rate_that_had_risen(recording: Recording) -> None:
    rate = np.full(STEPS, 1e-3)
    rate[AT - 1] = 10.0
    finding = found(recording, np.inf, (EMBED, 1e30), (GRAD, 1e30), series={"lr": rate})
    assert finding.facts["cause_class"] == "learning_rate" and finding.facts["of_magnitude"]


def test_where_a_gradient_was_bad_nothing_is_said_of_finite_ones(recording: Recording) -> None:
    bad = np.zeros((4, STEPS))
    bad[GRAD, AT] = 3
    finding = found(recording, np.inf, nan_count=bad)
    assert "cause_class" not in finding.facts and "finite" not in " ".join(finding.evidence[1:-1])


@pytest.mark.parametrize(("size", "expected"), [(1.7e9, "data"), (1.0, "learning_rate")])
def test_an_output_of_the_first_steps_whose_square_is_beyond_the_range(
    recording: Recording, size: float, expected: str
) -> None:
    """Nothing is usual yet, so that nothing has left its usual range."""
    tensors = [
        tensor(name, kind, at, "float32")
        for at, (name, kind) in enumerate((("enter", "output"), ("head", "output"), ("head.weight", "grad")))
    ]
    amax = np.array([[1.0, 1.0, 1.0], [1e9, 7.9e25, 1e30], [1e9, 1e30, 1e30]])
    series = {"loss": [4.5e17, np.inf, np.inf], "input_rms": size}
    recording.write(tensors, 3, {"amax": amax}, series=series)
    finding = recording.diagnose(loss_nonfinite.RULE).findings[0]
    assert (finding.step, finding.facts["cause_class"]) == (1, expected)
    assert "The output of head was 7.9e+25" in " ".join(finding.evidence)
    assert ("Normalise" in advice(finding)) == (expected == "data")


def test_outputs_of_float16_are_above_256_as_a_rule(recording: Recording) -> None:
    finding = found(recording, np.inf, dtype="float16", scale=300.0)
    assert finding.facts["cause_class"] == "forward_arithmetic" and "learning rate" not in advice(finding)
