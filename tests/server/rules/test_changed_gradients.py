"""Gradients that something changes between the backward and the optimizer, and clips of scaled ones."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch.wire import events
from rangewatch.wire.events import Clipping, SampledWeights, UnscaledLoss
from rangewatch.wire.records import Event
from rangewatch_server.rules.gradients.changed_gradients import RULE as CHANGED
from rangewatch_server.rules.loss_scale.clipped_scaled import RULE as SCALED
from rangewatch_server.rules.loss_scale.unscaled_loss import RULE as UNSCALED
from tests.server.rules.conftest import Recording, tensor

LAYERS = [tensor("a.weight", "grad", 0, "float32"), tensor("b.weight", "grad", 1, "float32")]
STEPS, AT = 200, 120
MOST = np.sqrt(2 * 32)
"""Of two gradients of 32 elements whose largest is 1."""


def norms(*jumps: tuple[int, float]) -> np.ndarray:
    values = 3 + np.random.default_rng(1).normal(0, 0.3, STEPS)
    for step, value in jumps:
        values[step : step + 8] = value
    return values


def test_a_norm_that_no_rank_s_gradients_allow(recording: Recording) -> None:
    for rank in range(2):
        recording.write(LAYERS, STEPS, rank=rank, world_size=2, series={"clipped_norm": norms((AT, 1e6))})
    assert recording.diagnose(CHANGED, stop=AT).findings == ()
    (finding,) = recording.diagnose(CHANGED).findings
    assert (finding.step, finding.rank, finding.facts["cause_class"]) == (AT, None, "communication")
    assert finding.facts["most"] == pytest.approx(MOST)
    assert "learning rate" not in " ".join(each.text for each in finding.remedy)


def test_of_one_rank_it_is_no_reduction(recording: Recording) -> None:
    recording.write(LAYERS, STEPS, series={"grad_norm": norms((AT, 1e6))})
    (finding,) = recording.diagnose(CHANGED).findings
    assert (finding.step, finding.rank, finding.facts["cause_class"]) == (AT, 0, "clip")


def test_gradients_that_explode_themselves_are_not_changed(recording: Recording) -> None:
    amax = np.ones((2, STEPS))
    amax[:, AT : AT + 8] = 3e5
    recording.write(LAYERS, STEPS, {"amax": amax}, series={"clipped_norm": norms((AT, 1e6))})
    assert recording.diagnose(CHANGED).findings == ()


SAMPLED = events.event(SampledWeights(("b.weight",), True), 1, 0)


def taken(*jumps: tuple[int, float]) -> np.ndarray:
    values = 0.5 + np.random.default_rng(1).uniform(0, 0.5, STEPS)
    for step, value in jumps:
        values[step] = value
    return values


def test_one_update_that_is_given_far_more_than_the_backward_made(recording: Recording) -> None:
    """As where gradients are divided by a count of nothing. No norm is recorded."""
    recording.write(LAYERS, STEPS, series={"sampled_gradient": taken((AT, 4e9))}, events=[SAMPLED])
    (finding,) = recording.diagnose(CHANGED).findings
    assert (finding.step, finding.rank, finding.facts["cause_class"]) == (AT, 0, "clip")
    assert "that of b.weight held 4e+09 when the optimizer took it" in finding.summary
    assert "Go back to a checkpoint from before that step" in finding.remedy[1].text


@pytest.mark.parametrize(
    ("amax", "jump"),
    [(1.0, 1.9), (3e9, 4e9), (1e-9, 0.9)],
    ids=["what accumulates", "the backward's own", "a gradient that is normalised"],
)
def test_what_the_backward_and_the_loop_may_give(recording: Recording, amax: float, jump: float) -> None:
    of_all = np.ones((2, STEPS))
    of_all[:, AT] = amax
    series = {"sampled_gradient": taken((AT, jump))}
    recording.write(LAYERS, STEPS, {"amax": of_all}, series=series, events=[SAMPLED])
    assert recording.diagnose(CHANGED).findings == ()


@pytest.mark.parametrize("is_constant", [True, False])
def test_a_division_that_is_left_out_once(recording: Recording, is_constant: bool) -> None:
    """By a scale that the loop keeps itself. What is another part in each step, as a clip makes it, may be less."""
    part = 1e-8 if is_constant else 1e-8 * np.random.default_rng(1).uniform(0.2, 1.0, STEPS)
    given = 1e8 * np.where(np.arange(STEPS) == AT, 1.0, part)
    recording.write(LAYERS, STEPS, {"amax": 1e8}, series={"sampled_gradient": given}, events=[SAMPLED])
    found = recording.diagnose(CHANGED).findings
    assert [(each.step, each.rank) for each in found] == [(AT, 0)] * is_constant
    for each in found:
        assert (
            "the optimizer was given gradients 1e+08 times as large as what is otherwise made of them" in each.summary
        )
        assert "given 1e-08 times what the backward had made, each time, and at this step 1 times" in each.evidence[1]
        assert "a branch may leave a division out" in each.remedy[0].text


@pytest.mark.parametrize(
    ("times", "loss", "severity"), [(1e3, 1.0, "info"), (1e3, 9.0, "warning"), (1e5, 1.0, "warning")]
)
def test_one_that_is_larger_now_and_then(recording: Recording, times: float, loss: float, severity: str) -> None:
    """As by the weights of rows: it is wrong where the loss shows it, or where it must harm."""
    given = np.where(np.arange(STEPS) == AT, times, 1.0)
    losses = np.where(np.arange(STEPS) > AT, loss, 1.0)
    recording.write(LAYERS, STEPS, series={"sampled_gradient": given, "loss": losses}, events=[SAMPLED])
    (finding,) = recording.diagnose(CHANGED).findings
    assert (finding.step, finding.severity) == (AT, severity)


@pytest.mark.parametrize("jump", [12.0, 40.0])
def test_what_the_gradients_allow_is_no_news(recording: Recording, jump: float) -> None:
    """Beyond 16 times what was usual, or beyond what is possible: not both."""
    recording.write(LAYERS, STEPS, {"amax": 8.0}, series={"clipped_norm": norms((AT, jump))})
    assert recording.diagnose(CHANGED).findings == ()


def test_a_norm_of_gradients_that_are_all_zero_is_not_judged(recording: Recording) -> None:
    """As of a loop that clips what a backward that was not seen left."""
    amax = np.ones((2, STEPS))
    amax[:, AT:] = 0
    recording.write(LAYERS, STEPS, {"amax": amax}, series={"grad_norm": norms((AT, 1e6))})
    assert recording.diagnose(CHANGED).findings == ()


def test_a_norm_without_the_loss_scale(recording: Recording) -> None:
    series = {"clipped_norm": norms((AT, 1e6)), "loss_scale": 1024.0}
    recording.write(LAYERS, STEPS, {"amax": 1024.0}, series=series, loss_scaled=True)
    (finding,) = recording.diagnose(CHANGED).findings
    assert finding.facts["most"] == pytest.approx(MOST)


def clipped(step: int, steps: int, max_norm: float = 1.0) -> Event:
    return events.event(Clipping(max_norm, steps > 0, steps), 1, step)


def test_scaled_gradients_are_clipped(recording: Recording) -> None:
    series = {"clipped_norm": 5e4, "loss_scale": 65536.0}
    recording.write(LAYERS, STEPS, series=series, events=[clipped(45, 16)], loss_scaled=True)
    assert recording.diagnose(SCALED, stop=45).findings == ()
    (finding,) = recording.diagnose(SCALED).findings
    assert (finding.step, finding.severity, finding.facts["cause_class"]) == (30, "warning", "clip")
    assert "unscale_" in finding.remedy[0].text


@pytest.mark.parametrize(("max_norm", "norm"), [(65536.0, 1e6), (1.0, 0.5)])
def test_a_limit_that_is_meant_or_never_reached(recording: Recording, max_norm: float, norm: float) -> None:
    series = {"clipped_norm": norm, "loss_scale": 65536.0}
    recording.write(LAYERS, STEPS, series=series, events=[clipped(45, 16, max_norm)], loss_scaled=True)
    assert recording.diagnose(SCALED).findings == ()


def test_later_they_are_unscaled_first(recording: Recording) -> None:
    series = {"clipped_norm": 5e4, "loss_scale": 65536.0}
    recording.write(LAYERS, STEPS, series=series, events=[clipped(45, 16), clipped(90, 0)], loss_scaled=True)
    (finding,) = recording.diagnose(SCALED).findings
    assert finding.severity == "info" and finding.facts["is_over"]


def unscaled(steps: int, step: int) -> Event:
    return events.event(UnscaledLoss(steps, 12, True), 1, step)


@pytest.mark.parametrize(("scale", "count"), [(16384.0, 1), (1.0, 0)])
def test_a_loss_is_not_scaled(recording: Recording, scale: float, count: int) -> None:
    recording.write(LAYERS, STEPS, series={"loss_scale": scale}, events=[unscaled(4, 15)], loss_scaled=True)
    found = recording.diagnose(UNSCALED).findings
    assert [(each.step, each.severity, each.facts["cause_class"]) for each in found] == [
        (12, "warning", "loss_scale")
    ] * count


def test_later_it_was_scaled(recording: Recording) -> None:
    given = [unscaled(4, 15), unscaled(0, 40)]
    recording.write(LAYERS, STEPS, series={"loss_scale": 16384.0}, events=given, loss_scaled=True)
    (finding,) = recording.diagnose(UNSCALED).findings
    assert finding.severity == "info" and "later it was" in finding.summary


@pytest.mark.parametrize(("groups", "count"), [((), 1), (("body", "head"), 0)])
def test_updates_that_became_far_smaller(recording: Recording, groups: tuple[str, ...], count: int) -> None:
    """Of several groups the largest rate is known alone: that of the sampled parameter may have been faded out."""
    sent = [
        events.event(events.Optimizers(("SGD",), groups=groups), 1, 2),
        events.event(events.SampledWeights(("a.weight",), are_held=True), 1, 1),
    ]
    series = {"sampled_update": np.where(np.arange(STEPS) < AT, 1e-2, 1e-7), "lr": 1e-2, "loss": 1.0}
    recording.write(LAYERS, STEPS, series=series, events=sent)
    found = [each for each in recording.diagnose(CHANGED).findings if each.subject == "shrunk"]
    assert len(found) == count


@pytest.mark.parametrize(
    ("given", "scaled", "other", "count"),
    [(np.nan, False, 0, 1), (np.inf, False, 0, 1), (0.5, False, 0, 0), (np.nan, True, 0, 0), (np.nan, False, 3, 0)],
    ids=["NaN", "Inf", "finite", "a scaler leaves it out", "another gradient was NaN"],
)
def test_the_last_update_of_a_run(recording: Recording, given: float, scaled: bool, other: int, count: int) -> None:
    """No forward comes after it."""
    taken, update, bad, amax = np.full(40, 0.5), np.full(40, 0.01), np.zeros((2, 40)), np.full((2, 40), 0.5)
    taken[-1], update[-1], bad[1, -1], amax[0, -1] = given, np.nan, other, 0.0
    series = {"loss": 1.0, "sampled_gradient": taken, "sampled_update": update}
    recording.write(
        [tensor("a.weight", "grad", 0, "float32"), tensor("b.weight", "grad", 1, "float32")], 40,
        {"amax": amax, "nan_count": bad}, loss_scaled=scaled,
        series=series | ({"loss_scale": 1.0} if scaled else {}),
        events=[events.event(SampledWeights(("a.weight",), True), 1, 2)],
    )  # fmt: skip
    found = recording.diagnose(CHANGED).findings
    expected = [(39, "clip", "critical")] * count
    assert [(each.step, each.facts["cause_class"], each.severity) for each in found] == expected
    assert all("0 divided by its own norm" in each.evidence[1] for each in found)
