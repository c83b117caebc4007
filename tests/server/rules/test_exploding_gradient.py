"""Gradients far above their own history."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch_server.rules.gradients.exploding_gradient import RULE
from rangewatch_server.rules.loss import loss_spike
from rangewatch_server.rules.presets import BY_NAME
from tests.server.rules.conftest import Recording, tensor

LAYERS = [tensor(f"layers.{at}.weight", "grad", at, dtype="float32") for at in range(4)]
NOISE = np.random.default_rng(3)


def usual(steps: int) -> np.ndarray:
    return np.exp(NOISE.normal(0, 0.5, (4, steps)))


def test_a_lasting_rise_is_told(recording: Recording) -> None:
    amax = usual(150)
    amax[2, 144:] = np.r_[1, np.full(5, 2_000)]
    recording.write(LAYERS, 150, {"amax": amax})
    assert recording.diagnose(RULE, stop=149).findings == ()  # four steps: it may be over
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.kind, found.rank, found.step) == ("layers.2.weight", "grad", 0, 145)
    assert found.facts["factor"] > 32


def test_the_loss_that_jumped_with_it_is_its_consequence(recording: Recording) -> None:
    amax, loss = usual(160), 2 + NOISE.normal(0, 0.1, 160)
    amax[2, 144:] = np.r_[1, np.full(15, 2_000)]
    loss[145:] += 5
    recording.write(LAYERS, 160, {"amax": amax}, series={"loss": loss})
    (before,) = recording.diagnose(RULE, loss_spike.RULE, stop=149).findings
    assert before.rule == "loss_spike"
    (found,) = recording.diagnose(RULE, loss_spike.RULE).findings
    assert (found.rule, found.step) == ("exploding_gradient", 145)
    assert "the loss jumped" in found.consequences[0]


def test_spikes_and_slow_changes_are_quiet(recording: Recording) -> None:
    amax = usual(300) * np.linspace(1, 30, 300)
    amax[1, ::10] *= 5_000
    amax[2, 100:104] *= 5_000
    amax[0, 297:] *= 5_000
    recording.write(LAYERS, 300, {"amax": amax})
    for stop in range(1, 301, 13):
        assert recording.diagnose(RULE, stop=stop).findings == ()


def test_the_loss_scale_is_taken_out(recording: Recording) -> None:
    scale = np.where(np.arange(150) < 100, 1.0, 65_536.0)
    recording.write(LAYERS, 150, {"amax": usual(150) * scale}, series={"loss_scale": scale}, loss_scaled=True)
    assert recording.diagnose(RULE).findings == ()


def test_the_scaled_gradient_that_grows_as_the_scale_falls(recording: Recording) -> None:
    scale = np.where(np.arange(150) < 140, 65_536.0, 1.0)
    recording.write(LAYERS, 150, {"amax": 100.0}, series={"loss_scale": scale}, loss_scaled=True)
    assert len(recording.diagnose(RULE).findings) == 1


def test_all_layers_are_one_finding(recording: Recording) -> None:
    amax = usual(150)
    amax[:, 140:] *= 1_000
    amax[3, 140:] *= 10
    recording.write(LAYERS, 150, {"amax": amax})
    (found,) = recording.diagnose(RULE).findings
    assert found.tensor == "layers.3.weight"
    assert any("3 more gradients" in each for each in found.evidence)


@pytest.mark.parametrize("name", ["megatron", "msprobe"])
def test_presets_are_less_quiet(recording: Recording, name: str) -> None:
    amax = usual(150)
    amax[2, 140:] = 40.0
    recording.write(LAYERS, 150, {"amax": amax})
    assert recording.diagnose(RULE).findings == ()
    assert len(recording.diagnose(RULE, thresholds=BY_NAME[name].thresholds).findings) == 1


@pytest.mark.parametrize("steps", [0, 1, 30])
def test_short_runs(recording: Recording, steps: int) -> None:
    recording.write(LAYERS, steps, {"amax": 2.0 ** np.arange(steps)[None]})
    diagnosis = recording.diagnose(RULE)
    assert (diagnosis.findings, diagnosis.failed) == ((), {})


def restarted(
    recording: Recording, later: float, *, first: float = 1.2, raised_to: float = 1e-3, is_seldom: bool = False
) -> None:
    """Cosines of 80 steps from 1e-3 to 0 and again from `raised_to`; gradients rise at step 100. The loss falls from
    `first` to 0.01, and is `later` from step 100 on. `is_seldom`: a trainer logs them each 10th step, and until then
    the agent recorded the rate."""
    at = np.arange(160)
    wave = 0.5 * (1 + np.cos(np.pi * (at % 80) / 80))
    rate = wave * np.where(at < 80, 1e-3, raised_to)
    amax = usual(160) * 1e-3
    amax[2, 100:] *= 2_000
    loss = np.where(at < 100, np.maximum(0.01, first * 0.9**at), later)
    series = {"lr": rate, "loss": loss}
    if is_seldom:
        is_logged = (at % 10 == 9) | (at < 9)
        series = {"loss": np.where(is_logged, loss, np.nan), "learning_rate": np.where(at % 10 == 9, rate, np.nan)}
        series["lr"] = np.where(at < 9, rate, np.nan)
    recording.write(LAYERS, 160, {"amax": amax}, series=series)


def test_a_trainer_that_logs_the_rate_now_and_then(recording: Recording) -> None:
    restarted(recording, 0.02, is_seldom=True)
    (found,) = recording.diagnose(RULE).findings
    assert found.severity == "info"


@pytest.mark.parametrize(("later", "severity"), [(0.02, "info"), (0.2, "info"), (0.5, "warning"), (3.0, "warning")])
def test_gradients_that_rise_with_a_rate_that_is_raised_again(
    recording: Recording, later: float, severity: str
) -> None:
    restarted(recording, later)
    (found,) = recording.diagnose(RULE).findings
    assert (found.severity, found.step) == (severity, 100)
    is_named = any("by its schedule, and the loss does not suffer" in each for each in found.evidence)
    assert is_named == (severity == "info")
    assert severity == "warning" or "cause_class" not in found.facts


def test_a_loss_that_leaps_and_is_gone_has_suffered(recording: Recording) -> None:
    """As of one network of a GAN, which has nothing to do any more once the other is broken."""
    at = np.arange(160)
    amax = usual(160) * 1e-3
    amax[2, 100:] *= 2_000
    loss = np.where(at < 100, 0.5, np.where(at < 106, 1e5, 0.0))
    recording.write(LAYERS, 160, {"amax": amax}, series={"lr": np.where(at < 99, 1e-3, 50.0), "loss": loss})
    (found,) = recording.diagnose(RULE).findings
    assert found.severity == "warning" and found.facts["cause_class"] == "learning_rate"


def test_a_warm_up_in_which_gradients_and_no_losses_rise(recording: Recording) -> None:
    at = np.arange(160)
    amax = usual(160) * 1e-3
    amax[2, 100:] *= 2_000
    series = {"lr": 1e-5 * np.minimum(1.03**at, 60.0), "loss": np.linspace(4.0, 2.0, 160)}
    recording.write(LAYERS, 160, {"amax": amax}, series=series)
    (found,) = recording.diagnose(RULE).findings
    assert found.severity == "info"


def test_a_rate_that_is_higher_than_ever_is_judged_by_the_loss_right_before(recording: Recording) -> None:
    restarted(recording, 0.5, raised_to=1e-2)
    (found,) = recording.diagnose(RULE).findings
    assert found.severity == "warning"


def test_without_a_rate_that_was_raised_a_rise_is_a_warning(recording: Recording) -> None:
    amax = usual(160)
    amax[2, 100:] *= 2_000
    recording.write(LAYERS, 160, {"amax": amax}, series={"lr": np.linspace(1e-3, 0, 160), "loss": np.full(160, 0.5)})
    (found,) = recording.diagnose(RULE).findings
    assert found.severity == "warning"
