"""Gradients that a layer does not get any more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch_server.rules import Finding
from rangewatch_server.rules.gradients.vanishing_gradient import RULE
from rangewatch_server.rules.presets import BY_NAME as PRESETS
from tests.server.rules.conftest import EVERY, Recording, tensor

LAYERS = [tensor(f"layers.{at}.weight", "grad", at, dtype="float32") for at in range(6)]
NOISE = np.random.default_rng(3)


def usual(steps: int) -> np.ndarray:
    return np.exp(NOISE.normal(0, 0.5, (6, steps)))


def test_one_layer_that_falls_is_told(recording: Recording) -> None:
    amax = usual(200)
    amax[1, 150:] *= 2.0**-20
    recording.write(LAYERS, 200, {"amax": amax})
    assert recording.diagnose(RULE, stop=180).findings == ()  # 30 points: it may come back
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.rank, found.step) == ("layers.1.weight", 0, 199)
    assert found.facts["against"] == "its own history"
    assert not found.facts["all_zero"]


def test_a_layer_that_gets_zeros_only(recording: Recording) -> None:
    amax = usual(200)
    amax[4, 140:] = 0
    recording.write(LAYERS, 200, {"amax": amax})
    (found,) = recording.diagnose(RULE).findings
    assert found.summary == "Step 140, rank 0: the gradient of layers.4.weight has been zero in every element since."
    assert found.facts["since_step"] == 140


def test_all_layers_that_converge_are_quiet(recording: Recording) -> None:
    recording.write(LAYERS, 250, {"amax": usual(250) * 2.0 ** -np.linspace(0, 40, 250)})
    for stop in range(50, 251, 25):
        assert recording.diagnose(RULE, stop=stop).findings == ()


def test_zeros_now_and_then_are_quiet(recording: Recording) -> None:
    amax = usual(250)
    amax[1, np.arange(250) % 20 != 0] = 0  # an expert that is seldom asked
    amax[2] = 0  # has never had a gradient
    amax[3, :50] = 0
    recording.write(LAYERS, 250, {"amax": amax})
    for stop in range(50, 251, 25):
        assert recording.diagnose(RULE, stop=stop).findings == ()


def test_a_profile_that_vanishes_toward_the_first_layers(recording: Recording) -> None:
    recording.write(LAYERS, 100, {"amax": usual(100) * 2.0 ** (-12.0 * np.arange(6)[::-1, None])})
    (found,) = recording.diagnose(RULE).findings
    assert found.tensor == "layers.0.weight"
    assert found.facts["against"] == "the other weights' gradients"


def test_biases_before_a_normalisation_have_none(recording: Recording) -> None:
    layers = [*LAYERS, *(tensor(f"conv.{at}.bias", "grad", 6 + at, dtype="float32") for at in range(2))]
    layers[6:] = [type(each)(each.fqn, each.kind, 0, each.dtype, (8,), each.call_index, "") for each in layers[6:]]
    amax = np.concatenate([usual(200), np.full((2, 200), 1e-9)])
    recording.write(layers, 200, {"amax": amax})
    assert recording.diagnose(RULE).findings == ()


def test_sparse_rows_and_missing_gradients(recording: Recording) -> None:
    calls = np.ones((6, 250))
    calls[2, 60:] = 0  # not observed is not zero
    recording.write(LAYERS, 250, {"amax": usual(250) * calls, "call_count": calls, "numel": 32 * calls})
    assert recording.diagnose(RULE).findings == ()


def test_the_absolute_limit_is_a_preset(recording: Recording) -> None:
    measured = (np.arange(250) % 50 == 0).astype(float)
    sum_sq = measured * 32 * np.array([1, 1, 1e-16, 1, 1, 1])[:, None]  # root mean square 1e-8
    recording.write(LAYERS, 250, {"amax": 1e-7, "full_numel": 32 * measured, "sum_sq": sum_sq})
    assert recording.diagnose(RULE).findings == ()
    (found,) = recording.diagnose(RULE, thresholds=PRESETS["sagemaker"].thresholds).findings
    assert found.tensor == "layers.2.weight"


@pytest.mark.parametrize("steps", [0, 1, 40])
def test_short_runs(recording: Recording, steps: int) -> None:
    recording.write(LAYERS, steps, {"amax": 0.0})
    diagnosis = recording.diagnose(RULE)
    assert (diagnosis.findings, diagnosis.failed) == ((), {})


def reported(recording: Recording, stop: int) -> list[str | None]:
    return [found.tensor for found in recording.diagnose(RULE, stop=stop).findings]


@pytest.mark.parametrize("at", [60, 150, 700], ids=["early", "later", "late"])
@pytest.mark.parametrize("factor", [2.0**-20, 0.0], ids=["small", "zero"])
@EVERY
def test_it_is_told_for_as_long_as_it_is_so(recording: Recording, at: int, factor: float, every: int) -> None:
    amax = usual(5_000)
    amax[1, at:] *= factor
    recording.write(LAYERS, 5_000, {"amax": amax})
    for stop in [*range(at + 32, at + 600, 8 * every), *range(at + 600, 5_001, 160 * every), 5_000]:
        assert reported(recording, stop) == ["layers.1.weight"], stop
    (found,) = recording.diagnose(RULE).findings
    assert f"It fell soon after step {(at - 1) // 8 * 8}." in found.evidence


def test_the_fall_is_found_in_all_of_a_long_run(recording: Recording) -> None:
    amax = usual(40_000)
    amax[1, 3_000:] *= 2.0**-20
    recording.write(LAYERS, 40_000, {"amax": amax})
    for stop in (3_032, 3_300, 7_000, 7_300, 20_000, 40_000):
        assert reported(recording, stop) == ["layers.1.weight"], stop


def test_one_that_comes_back_is_quiet_again(recording: Recording) -> None:
    amax = usual(1_500)
    amax[1, 400:800] *= 2.0**-20
    recording.write(LAYERS, 1_500, {"amax": amax})
    assert reported(recording, 800) == ["layers.1.weight"]
    for stop in range(801, 1_500, 50):
        assert reported(recording, stop) == []


SLOW = {
    "always small": np.full(5_000, -15.0),
    "falls slowly": -np.linspace(0, 18, 5_000),
    "falls slowly, then stays": -np.minimum(np.linspace(0, 60, 5_000), 15),
    "as a learning rate's cosine": -7 + 7 * np.cos(np.linspace(0, np.pi, 5_000)),
    "large in the first steps": np.where(np.arange(5_000) < 12, 14.0, 0.0),
    "grows": np.linspace(-15, 0, 5_000),
    "wanders": np.convolve(np.random.default_rng(5).normal(0, 1, 5_063), np.ones(64) / 16, "valid"),
}


@EVERY
@pytest.mark.parametrize("name", SLOW)
def test_what_falls_slowly_or_was_always_small_is_quiet(recording: Recording, name: str, every: int) -> None:
    amax = usual(5_000)
    amax[1] *= 2.0 ** SLOW[name]
    recording.write(LAYERS, 5_000, {"amax": amax})
    for stop in [*range(40, 5_000, 130 * every), 5_000]:
        assert reported(recording, stop) == [], stop


@EVERY
@pytest.mark.parametrize("mean", [20, 64, 300])
def test_an_expert_that_is_asked_now_and_then_is_quiet(recording: Recording, mean: int, every: int) -> None:
    amax = usual(5_000)
    amax[1] *= NOISE.random(5_000) < 1 / mean
    recording.write(LAYERS, 5_000, {"amax": amax})
    for stop in range(40, 5_001, 80 * every):
        assert reported(recording, stop) == [], stop


def test_the_loss_scale_is_taken_out_of_the_history_too(recording: Recording) -> None:
    scale = np.where(np.arange(1_500) < 700, 2.0**16, 1.0)
    amax = usual(1_500)
    amax[0] = np.where(np.arange(1_500) < 700, 2.0**-16, 1.0)  # is always the same once the scale is taken out
    recording.write(LAYERS, 1_500, {"amax": amax * scale}, series={"loss_scale": scale}, loss_scaled=True)
    for stop in range(40, 1_501, 120):
        assert reported(recording, stop) == [], stop


def test_of_those_that_fell_together_the_same_one_is_named(recording: Recording) -> None:
    amax = usual(900)
    amax[2:5, 400:] *= 2.0**-23
    recording.write(LAYERS, 900, {"amax": amax})
    names = [reported(recording, stop) for stop in range(432, 900, 18)]
    assert names == [["layers.2.weight"]] * len(names)


CODEC = [
    tensor("encoder", call_index=0, dtype="float32"), tensor("decoder", call_index=1, dtype="float32"),
    tensor("head.weight", "grad", 2, "float32"), tensor("head.bias", "grad", 3, "float32"),
    tensor("decoder.weight", "grad", 4, "float32"), tensor("decoder.bias", "grad", 5, "float32"),
    tensor("encoder.weight", "grad", 6, "float32"), tensor("encoder.bias", "grad", 7, "float32"),
]  # fmt: skip


def codec(recording: Recording, *, gradual: bool = False, output: float = 1.0, lost: Any = 2) -> Finding:
    """The last `lost` gradients, of the encoder, are gone from step 140 on, or those of these rows."""
    amax = np.exp(NOISE.normal(0, 0.2, (8, 240)))
    rows = range(len(CODEC) - lost, len(CODEC)) if isinstance(lost, int) else lost
    if gradual:
        amax[rows, 100:140] *= 2.0 ** -np.arange(40)
    amax[rows, 140:] = 0
    amax[:2, 140:] *= output
    recording.write(CODEC, 240, {"amax": amax})
    (finding,) = recording.diagnose(RULE).findings
    return finding


@pytest.mark.parametrize(("lost", "module"), [(2, "encoder"), (4, "decoder")], ids=["few", "most"])
def test_a_slope_that_is_lost_from_one_step_to_the_next(recording: Recording, lost: int, module: str) -> None:
    """As by a rounding that a codec is given after it was trained on noise."""
    finding = codec(recording, lost=lost)
    assert (finding.facts["cause_class"], finding.facts["where"]) == ("backward_arithmetic", module)
    assert "at step 139 and 0 from step 140 on" in " ".join(finding.evidence)
    assert ".detach()" in finding.remedy[0].code


def test_a_weight_without_and_a_bias_with_a_gradient_are_of_units_that_died(recording: Recording) -> None:
    """In a function, as of a ReLU that is no module: what the next module is given is 0."""
    (weight,) = (at for at, each in enumerate(CODEC) if each.fqn == "encoder.weight" and each.kind == "grad")
    finding = codec(recording, lost=[weight])
    assert (finding.facts["cause_class"], finding.facts["where"]) == ("dead_units", "encoder")
    assert (
        "all that it is given is 0" in " ".join(finding.evidence) and "right before encoder" in finding.remedy[0].text
    )


def test_a_bias_without_a_gradient_says_nothing_of_that(recording: Recording) -> None:
    assert "cause_class" not in codec(recording, lost=1).facts


@pytest.mark.parametrize("how", [{"gradual": True}, {"output": 0.0}, {"output": 100.0}], ids=str)
def test_one_that_faded_or_units_that_died_or_saturated_are_another_matter(recording: Recording, how: Any) -> None:
    assert "cause_class" not in codec(recording, **how).facts


HEADS = [
    tensor("body", call_index=0, dtype="float32"), tensor("main", call_index=1, dtype="float32"),
    tensor("aux", call_index=2, dtype="float32"),
    tensor("aux.weight", "grad", 3, "float32"), tensor("aux.bias", "grad", 4, "float32"),
    tensor("main.weight", "grad", 5, "float32"), tensor("main.bias", "grad", 6, "float32"),
    tensor("body.weight", "grad", 7, "float32"), tensor("body.bias", "grad", 8, "float32"),
]  # fmt: skip


def headed(
    recording: Recording, *, gradual: bool = False, since: int = 140, zero: Any = (3, 5), output: float = 1.0
) -> Finding:
    amax = np.exp(NOISE.normal(0, 0.2, (9, 300)))
    rows = slice(*zero)
    if gradual:
        amax[rows, 40:140] *= np.linspace(1, 0.005, 100)
    amax[rows, since:] = 0
    amax[2, since:] *= output
    recording.write(HEADS, 300, {"amax": amax})
    (finding,) = recording.diagnose(RULE).findings
    return finding


@pytest.mark.parametrize("gradual", [False, True])
def test_a_head_whose_term_of_the_loss_is_switched_off(recording: Recording, gradual: bool) -> None:
    """What lies before it is trained by another head."""
    finding = headed(recording, gradual=gradual)
    assert (finding.severity, finding.step, finding.facts["cause_class"]) == ("info", 140, "weight")
    assert "Where that is meant, nothing is wrong." in " ".join(finding.evidence)
    assert "round" not in finding.remedy[0].code


def test_one_that_is_most_of_the_model_and_not_on_yet(recording: Recording) -> None:
    assert headed(recording, since=0, zero=(3, 7)).severity == "info"


@pytest.mark.parametrize("how", [{"output": 0.0}, {"output": 1e3}, {"zero": (4, 5)}, {"zero": (5, 9)}], ids=str)
def test_units_that_died_or_saturated_and_what_ends_the_backward_are_not(recording: Recording, how: Any) -> None:
    assert headed(recording, **how).severity == "warning"
