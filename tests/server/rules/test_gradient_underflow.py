"""Gradients that are too small for their dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch_server.rules.gradients.gradient_underflow import RULE
from tests.server.rules.conftest import Recording, tensor
from tests.server.rules.loss_scales import scaled

GRADS = [tensor("b", "grad_output", 2), tensor("a", "grad_output", 3), tensor("a", "output", 0)]
SMALL, LARGE = 1e-6, 1e-2


def full(steps: int, subnormal: Any, rms: Any, zero: Any = 0.0, every: int = 100) -> dict[str, np.ndarray]:
    """Full sets of 1,000 elements every so many steps; shares of them, by tensor."""
    at = np.zeros((len(GRADS), steps))
    at[:, ::every] = 1_000
    by_tensor = {"subnormal_count": subnormal, "zero_count": zero, "sum_sq": np.square(rms)}
    counts = {name: at * np.reshape(np.broadcast_to(each, 3), (3, 1)) for name, each in by_tensor.items()}
    return {"numel": np.full(at.shape, 1_000.0), "full_numel": at} | counts


def test_most_elements_are_subnormal(recording: Recording) -> None:
    recording.write(GRADS, 450, full(450, [0.9, 0.8, 0.0], [SMALL, SMALL, 1.0]))
    (found,) = recording.diagnose(RULE).findings
    assert (found.severity, found.tensor, found.kind, found.step) == ("warning", "b", "grad_output", 400)
    assert (found.rank, found.facts["cause_class"]) == (0, "loss_scale")
    assert found.summary == (
        "Step 400, rank 0: 2 of 2 gradients in float16 underflow, the gradient of the output of b most: 90% of its "
        "non-zero elements are subnormal, and the loss is not scaled."
    )
    assert "GradScaler('cpu', init_scale=65536" in found.remedy[0].code


def test_what_is_left_of_a_gradient_that_is_nearly_all_zero(recording: Recording) -> None:
    recording.write(GRADS, 450, full(450, [0.1, 0.1, 0.0], [1e-8, 1e-8, 1.0], zero=[0.9, 0.9, 0.0]))
    (found,) = recording.diagnose(RULE).findings
    assert found.facts["subnormal_fraction"] == 1.0
    assert any("90% zero" in each for each in found.evidence)


def test_a_scale_that_is_too_low_is_named(recording: Recording) -> None:
    series = scaled(450, (), first=8.0)
    recording.write(GRADS, 450, full(450, [0.9, 0.8, 0.0], [SMALL, SMALL, 1.0]), series=series, loss_scaled=True)
    (found,) = recording.diagnose(RULE).findings
    assert "The loss scale is 8." in found.evidence
    assert "not scaled" not in found.summary


def test_that_it_rises_is_told(recording: Recording) -> None:
    columns = full(450, [0.9, 0.9, 0.0], [SMALL, SMALL, 1.0])
    columns["subnormal_count"][:, 0] = 30
    recording.write(GRADS, 450, columns)
    (found,) = recording.diagnose(RULE).findings
    assert "It rises: at step 0 at most 3% of them were subnormal." in found.evidence


def test_behind_a_softmax_most_are_tiny_and_do_not_matter(recording: Recording) -> None:
    recording.write(GRADS, 450, full(450, [0.9, 0.9, 0.0], [LARGE, LARGE, 1.0]))
    assert recording.diagnose(RULE).findings == ()


def test_behind_a_relu_many_are_zero(recording: Recording) -> None:
    recording.write(GRADS, 450, full(450, 0.0, LARGE, zero=0.9))
    assert recording.diagnose(RULE).findings == ()


def test_an_unused_layer_has_zeros_only(recording: Recording) -> None:
    recording.write(GRADS, 450, full(450, 0.0, 0.0, zero=1.0))
    assert recording.diagnose(RULE).findings == ()


def test_other_dtypes_have_room(recording: Recording) -> None:
    wide = [tensor(each.fqn, each.kind, each.call_index, "bfloat16") for each in GRADS]
    recording.write(wide, 450, full(450, 0.9, 1e-39))
    assert recording.diagnose(RULE).findings == ()


def test_nothing_measured(recording: Recording) -> None:
    recording.write(GRADS, 450, {"subnormal_count": 32.0})
    report = recording.diagnose(RULE)
    assert (report.findings, report.failed) == ((), {})


def test_one_of_many_layers_is_not_the_run(recording: Recording) -> None:
    many = [tensor(f"{n}", "grad_output", n) for n in range(40)]
    columns = {"full_numel": 32.0, "sum_sq": 32.0, "subnormal_count": 0.0}
    shares = np.zeros((40, 200))
    shares[7] = 32
    squares = np.ones((40, 200))
    squares[7] = 1e-12
    recording.write(many, 200, columns | {"subnormal_count": shares, "sum_sq": squares})
    assert recording.diagnose(RULE).findings == ()


@pytest.mark.parametrize(
    ("scale", "zero", "count"),
    [(2.0**-26, 0.0, 1), (2.0**-26, 1e-9, 0), (512.0, 0.0, 0)],
)
def test_a_scale_that_is_next_to_nothing_from_a_step_on(
    recording: Recording, scale: float, zero: float, count: int
) -> None:
    """It passes for one of a scaler that searches where gradients are left, or it is halved."""
    at = np.arange(200)
    series = {"loss_scale": np.where(at < 100, 1024.0, scale), "loss": 1.0}
    grads = [tensor("a.weight", "grad", 1, "float32"), tensor("b.weight", "grad", 2, "float32")]
    recording.write(grads, 200, {"amax": np.where(at < 100, 0.1, zero)}, series=series, loss_scaled=True)
    assert [(each.step, each.facts["cause_class"]) for each in recording.diagnose(RULE).findings] == [
        (100, "loss_scale")
    ] * count
    if count:
        (found,) = recording.diagnose(RULE, stop=116).findings
        assert "the loss scale fell from 1024 to 1.49e-08 at once" in found.summary
        assert recording.diagnose(RULE, stop=115).findings == ()


@pytest.mark.parametrize(("skipped", "count"), [(0.0, 1), (1.0, 0)])
def test_a_scale_that_falls_though_no_step_is_skipped(recording: Recording, skipped: float, count: int) -> None:
    at = np.arange(200)
    series = {
        "loss_scale": 1024.0 * 0.5 ** np.clip(at - 99, 0, 30), "loss": 1.0,
        "skipped_step": np.where((at >= 99) & (at < 130), skipped, 0.0),
    }  # fmt: skip
    grads = [tensor("a.weight", "grad", 1, "float32")]
    recording.write(grads, 200, {"amax": 0.1}, series=series, loss_scaled=True)
    found = recording.diagnose(RULE).findings
    assert [(each.step, each.facts["cause_class"]) for each in found] == [(100, "loss_scale")] * count
    if count:
        assert "falls from 1024 to 9.54e-07 by step 129, though no step is skipped" in found[0].summary


@pytest.mark.parametrize(("scale", "count"), [(2.0**-8, 1), (1024.0, 0)])
def test_a_scale_that_has_always_been_next_to_nothing(recording: Recording, scale: float, count: int) -> None:
    """Nothing is left of any gradient, so that nothing is subnormal."""
    half = [tensor("a", "grad_output", 0), tensor("b", "grad_output", 1)]
    grads = [tensor("a.weight", "grad", 2, "float32"), tensor("b.weight", "grad", 3, "float32")]
    series = {"loss_scale": scale, "loss": 1.0}
    recording.write([*half, *grads], 100, {"amax": 0.0}, series=series, loss_scaled=True)
    found = recording.diagnose(RULE).findings
    assert len(found) == count
    for each in found:
        assert each.facts["cause_class"] == "loss_scale" and "the loss scale lifts nothing" in each.summary
        assert "Begin with a higher loss scale" in each.remedy[0].text
