"""A loss at one value above what it was while every gradient is 0; spikes of one step; a harder curriculum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch_server.rules import Finding
from rangewatch_server.rules.diagnosis import joined
from rangewatch_server.rules.gradients import exploding_gradient
from rangewatch_server.rules.loss import loss_spike, loss_stuck, short_spike
from rangewatch_server.rules.nonfinite import loss_nonfinite
from tests.server.rules.conftest import Recording, tensor

NOISE = np.random.default_rng(9)
TENSORS = [
    tensor("embed"),
    tensor("head", call_index=1),
    tensor("head.weight", "grad", 2),
    tensor("embed.w", "grad", 3),
]
GRADS = (2, 3)


def write(recording: Recording, loss: np.ndarray, *zero: tuple[int, int], **columns: Any) -> None:
    """`zero`: a tensor and the step from which it is 0 in every element."""
    amax = 2.0 ** NOISE.normal(0, 0.1, (4, len(loss)))
    for row, step in zero:
        amax[row, step:] = 0.0
    recording.write(TENSORS, len(loss), {"amax": amax, **columns}, series={"loss": loss})


def noisy(steps: int, level: float = 2.0) -> np.ndarray:
    return level + NOISE.normal(0, 0.05, steps)


@pytest.mark.parametrize("steps", [240, 3000])
def test_no_gradient_since_a_step_and_a_loss_that_is_higher(recording: Recording, steps: int) -> None:
    loss = np.r_[noisy(200), np.full(steps - 200, 2.5)]
    write(recording, loss, *((each, 200) for each in GRADS))
    assert recording.diagnose(loss_stuck.RULE, stop=220).findings == ()
    (found,) = recording.diagnose(loss_stuck.RULE).findings
    assert (found.step, found.severity) == (200, "warning") and "stayed at 2.5" in found.summary


@pytest.mark.parametrize(
    ("level", "zero"), [(1.0, 2), (2.5, 1), (2.0, 2)], ids=["its minimum", "one gradient is there", "as before"]
)
def test_what_is_not_stuck(recording: Recording, level: float, zero: int) -> None:
    loss = np.r_[np.full(200, 2.0), np.full(60, level)]
    write(recording, loss, *((each, 200) for each in GRADS[:zero]))
    assert recording.diagnose(loss_stuck.RULE).findings == ()


def test_it_follows_from_the_jump_before_it(recording: Recording) -> None:
    loss = np.r_[noisy(200), 1e12, np.full(60, 2.4)]
    write(recording, loss, *((each, 201) for each in GRADS))
    (found,) = recording.diagnose(loss_spike.RULE, loss_stuck.RULE, short_spike.RULE).findings
    assert (found.rule, found.step, found.severity) == ("loss_spike", 200, "warning")
    assert any("exactly 0 since" in each for each in found.consequences)


def test_one_value_that_is_a_thousand_times_the_highest_before(recording: Recording) -> None:
    loss = noisy(300)
    loss[200] = 1e6
    write(recording, loss)
    for stop in (201, 203, 300):
        (found,) = recording.diagnose(loss_spike.RULE, stop=stop).findings
        assert (found.step, found.severity) == (200, "warning")
    (found,) = recording.diagnose(loss_spike.RULE, short_spike.RULE).findings
    assert "was low again at step 201" in found.summary and found.facts["is_over"]


def test_the_first_losses_that_are_not_0(recording: Recording) -> None:
    """As of rewards that come late: nothing before says how high is usual."""
    loss = np.zeros(300)
    loss[200:] = 3 + NOISE.normal(0, 0.3, 100)
    write(recording, loss)
    for stop in (203, 210, 300):
        assert recording.diagnose(loss_spike.RULE, short_spike.RULE, stop=stop).findings == ()


def curriculum(*risen: int) -> tuple[np.ndarray, np.ndarray]:
    loss = np.r_[np.linspace(3, 1, 100), np.full(100, 1.0), np.full(100, 2.0)] + NOISE.normal(0, 0.02, 300)
    amax = 2.0 ** NOISE.normal(0, 0.1, (4, 300))
    amax[list(risen), 200:] *= 4
    return loss, amax


def test_a_jump_to_less_than_at_first_with_usual_gradients_is_worth_knowing(recording: Recording) -> None:
    loss, amax = curriculum()
    recording.write(TENSORS, 300, {"amax": amax}, series={"loss": loss})
    for stop in (220, 300):
        (found,) = recording.diagnose(loss_spike.RULE, stop=stop).findings
        assert (found.step, found.severity) == (200, "info") and "curriculum" in " ".join(found.evidence)


def test_with_gradients_that_rose_it_is_a_warning(recording: Recording) -> None:
    loss, amax = curriculum(2)
    recording.write(TENSORS, 300, {"amax": amax}, series={"loss": loss})
    (found,) = recording.diagnose(loss_spike.RULE).findings
    assert found.severity == "warning"


def test_so_it_is_where_a_gradient_is_gone(recording: Recording) -> None:
    loss, amax = curriculum()
    amax[3, 200:] = 0
    recording.write(TENSORS, 300, {"amax": amax}, series={"loss": loss})
    (found,) = recording.diagnose(loss_spike.RULE).findings
    assert found.severity == "warning"


def test_a_jump_that_never_was_over_leads_to_what_comes_later(recording: Recording) -> None:
    loss = noisy(300)
    loss[150:] += 30
    loss[250:] = np.inf
    amax = 2.0 ** NOISE.normal(0, 0.1, (4, 300))
    amax[2, 180:] *= 1e4
    recording.write(TENSORS, 300, {"amax": amax}, series={"loss": loss})
    rules = loss_spike.RULE, exploding_gradient.RULE, loss_nonfinite.RULE
    root, *others = recording.diagnose(*rules).findings
    assert (root.rule, root.step) == ("loss_spike", 150)
    assert [each.rule for each in others] == ["loss_nonfinite", "exploding_gradient"]
    assert len(root.consequences) == 2


def test_one_that_was_over_does_not(recording: Recording) -> None:
    loss = noisy(300)
    loss[150:155] += 30
    loss[250:] = np.inf
    write(recording, loss)
    first, other = recording.diagnose(loss_spike.RULE, loss_nonfinite.RULE).findings
    assert (first.rule, other.consequences) == ("loss_nonfinite", ())


@pytest.mark.parametrize(
    ("since", "recovered", "apart"),
    [(196, None, False), (150, None, True), (230, 210, False), (900, 210, True)],
    ids=["with it", "long before it", "soon after it was over", "long after"],
)
def test_what_a_nan_explains(since: int, recovered: int | None, apart: bool) -> None:
    nan = Finding(
        rule="first_nonfinite", severity="warning", rank=0, step=200, summary="NaN", facts={"recovered_step": recovered}
    )
    dead = Finding(
        rule="dead_activation", severity="warning", rank=0, step=999, summary="dead", facts={"since_step": since}
    )
    explained = {"first_nonfinite": frozenset({"dead_activation"}), "dead_activation": frozenset[str]()}
    assert len(joined([nan, dead], explained)) == 1 + apart


@pytest.mark.parametrize(("before", "count"), [(0.2, 1), (np.where(np.arange(100) % 3, 0.2, 0.0), 0)])
def test_a_loss_of_which_nothing_is_left(recording: Recording, before: Any, count: int) -> None:
    """From one step to the next; and one that had been 0 in more and more batches."""
    loss = np.r_[np.broadcast_to(before, 100), np.zeros(60)]
    amax = np.where(np.arange(160) < 100, 0.1, 0.0)
    recording.write([tensor("a.weight", "grad", 1)], 160, {"amax": amax}, series={"loss": loss})
    found = recording.diagnose(loss_stuck.RULE).findings
    assert [(each.step, each.facts["cause_class"]) for each in found] == [(100, "mask")] * count


def test_a_margin_that_is_learned_in_two_steps(recording: Recording) -> None:
    loss = np.r_[0.94, 0.3, np.zeros(98)]
    recording.write([tensor("a.weight", "grad", 1)], 100, {"amax": np.sign(loss)}, series={"loss": loss})
    assert recording.diagnose(loss_stuck.RULE).findings == ()
