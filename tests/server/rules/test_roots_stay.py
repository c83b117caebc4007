"""What was the root when it came is the root at the end of the run, with what it led to; and the first steps count."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch.wire.events import Optimizers, event
from rangewatch_server.rules import Finding
from rangewatch_server.rules.diagnosis import joined
from rangewatch_server.rules.gradients import exploding_gradient, vanishing_gradient
from rangewatch_server.rules.loss import loss_spike
from tests.server.rules.conftest import Recording, tensor

LAYERS = [tensor(f"layers.{at}.weight", "grad", at, dtype="float32") for at in range(6)]
NOISE = np.random.default_rng(3)


def usual(steps: int) -> np.ndarray:
    return np.exp(NOISE.normal(0, 0.4, (6, steps)))


@pytest.mark.parametrize("steps", [400, 1_500, 6_000])
def test_gradients_that_exploded_long_ago(recording: Recording, steps: int) -> None:
    amax = usual(steps)
    amax[2, 150:] *= 1_250
    amax[4, 300:] *= 1e-9
    recording.write(LAYERS, steps, {"amax": amax})
    rules = exploding_gradient.RULE, vanishing_gradient.RULE
    (then,) = recording.diagnose(*rules, stop=165).findings
    assert (then.step, then.tensor) == (150, "layers.2.weight")
    now, *others = recording.diagnose(*rules).findings
    assert (now.rule, now.step, now.tensor, now.rank) == (then.rule, then.step, then.tensor, then.rank)
    assert (now.summary, now.severity, others) == (then.summary, "warning", [])
    if steps < 1_000:
        assert "layers.4.weight" in now.consequences[0]


def test_what_is_over_is_told_as_such(recording: Recording) -> None:
    amax = usual(900)
    amax[2, 150:180] *= 1_250
    recording.write(LAYERS, 900, {"amax": amax})
    (found,) = recording.diagnose(exploding_gradient.RULE).findings
    assert (found.step, found.severity) == (150, "warning")
    assert "fell again" in found.summary


@pytest.mark.parametrize("steps", [500, 3_000])
def test_a_loss_that_jumped_long_ago(recording: Recording, steps: int) -> None:
    loss = 2 + NOISE.normal(0, 0.05, steps)
    loss[150:] += 5
    recording.write(LAYERS, steps, series={"loss": loss})
    (then,) = recording.diagnose(loss_spike.RULE, stop=170).findings
    (now,) = recording.diagnose(loss_spike.RULE).findings
    assert (then.step, now.step, now.severity, now.summary) == (150, 150, "warning", then.summary)


def test_a_jump_within_the_first_steps(recording: Recording) -> None:
    loss = np.r_[np.linspace(7, 5, 50) + NOISE.normal(0, 0.1, 50), np.full(30, 3_000.0)]
    recording.write(LAYERS, 80, series={"loss": loss})
    (found,) = recording.diagnose(loss_spike.RULE).findings
    assert (found.step, found.severity) == (50, "warning")


def test_a_training_that_diverges_from_the_start(recording: Recording) -> None:
    loss = np.r_[4.4, 9, 20, 65 + NOISE.normal(0, 5, 57)]
    amax = np.ones((6, 60)) * np.r_[1, 3, 8, np.full(57, 30.0)]
    recording.write(LAYERS, 60, {"amax": amax}, series={"loss": loss, "lr": 3.0})
    (found,) = recording.diagnose(loss_spike.RULE).findings
    assert (found.subject, found.severity) == ("diverged", "warning")
    assert "learning rate" in found.remedy[0].text and found.tensor is None


@pytest.mark.parametrize(("rate", "where"), [(300.0, "blocks.0.weight"), (0.02, None)])
def test_the_group_whose_rate_is_far_above_the_others_is_the_place(
    recording: Recording, rate: float, where: str | None
) -> None:
    loss, amax = np.r_[4.4, 9, 20, np.full(57, 65.0)], np.ones((7, 60)) * np.r_[1, 3, 8, np.full(57, 30.0)]
    layers = [*LAYERS, tensor("blocks.0.weight", "grad", 6)]
    known = [event(Optimizers(("AdamW",), groups=("blocks.0.weight", "head.weight")), 1, 1)]
    series = {"loss": loss, "lr": rate, "lr_group_0": rate, "lr_group_1": 3e-3}
    recording.write(layers, 60, {"amax": amax}, series=series, events=known)
    (found,) = recording.diagnose(loss_spike.RULE).findings
    assert found.tensor == where
    assert ("parameter group of blocks.0.weight: to 0.003" in found.remedy[0].text) == (where is not None)


@pytest.mark.parametrize(("highest", "count"), [(1_400.0, 1), (8.0, 0)])
def test_a_small_first_loss_must_be_exceeded_by_far(recording: Recording, highest: float, count: int) -> None:
    """A policy's at a learning rate of 5, and one whose values grow with what it is paid."""
    loss = np.r_[0.34, np.linspace(highest, highest / 3, 59)]
    recording.write(LAYERS, 60, {"amax": np.ones((6, 60)) * np.r_[1, np.full(59, 30.0)]}, series={"loss": loss})
    found = recording.diagnose(loss_spike.RULE).findings
    assert [each.subject for each in found] == ["diverged"] * count


@pytest.mark.parametrize("rate", ["lr", "learning_rate"])
def test_one_whose_gradients_end_in_a_saturated_activation(recording: Recording, rate: str) -> None:
    """A tanh behind outputs of 1e5: the loss is a thousand times as high, and no gradient grows."""
    outputs = [tensor(f"layers.{at}", call_index=10 + at, dtype="float32") for at in range(4)]
    loss = np.r_[0.69, 0.69, 128, 100 + NOISE.normal(0, 20, 97)]
    amax = np.ones((10, 100))
    amax[:5, 2:] = 0
    amax[6:, 2:] = 5e3
    recording.write([*LAYERS, *outputs], 100, {"amax": amax}, series={"loss": loss, rate: 30.0})
    (found,) = recording.diagnose(loss_spike.RULE, vanishing_gradient.RULE).findings
    assert (found.subject, found.step) == ("diverged", 2)
    assert "outputs rose" in found.evidence[0] and "learning rate was up to 30" in found.evidence[0]
    assert "zero in every element" in found.consequences[0]


def test_losses_that_grow_in_healthy_trainings(recording: Recording) -> None:
    """A value loss from nearly nothing, and a generator's."""
    recording.write(LAYERS, 300, {"amax": 1.0}, series={"loss": np.linspace(0.02, 40, 300)})
    assert recording.diagnose(loss_spike.RULE).findings == ()


def test_a_first_loss_that_is_low_by_chance(recording: Recording) -> None:
    loss = np.r_[0.6, 2.8 + NOISE.normal(0, 0.2, 99)]
    recording.write(LAYERS, 100, {"amax": usual(100)}, series={"loss": loss})
    assert recording.diagnose(loss_spike.RULE).findings == ()


def test_what_may_have_begun_later_follows_from_what_began_meanwhile() -> None:
    """It was looked at each 32nd step: it began at one of the steps from 97 to 128."""
    root = Finding(rank=0, step=101, summary="gradients", rule="exploding_gradient", severity="warning")
    led = Finding(
        rank=0, step=97, summary="updates", rule="unchanged_weights", severity="warning", facts={"latest_step": 128}
    )
    explained = {"exploding_gradient": frozenset({"unchanged_weights"}), "unchanged_weights": frozenset[str]()}
    (found,) = joined([root, led], explained)
    assert (found.rule, found.consequences) == ("exploding_gradient", ("updates",))
