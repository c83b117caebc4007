"""NaN or Inf right after the learning rate rose or a checkpoint was loaded: one finding that says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire.events import Optimizers, event
from rangewatch.wire.records import Event
from rangewatch_server.rules import Finding
from rangewatch_server.rules.nonfinite.first_nonfinite import RULE
from tests.server.rules.conftest import Recording, tensor
from tests.server.rules.test_first_nonfinite_origin import (
    ACT,
    BAD,
    DOWN,
    DOWN_WEIGHT,
    MODEL,
    STEPS,
    UP,
    facts,
    found,
    origin,
    seen,
    text,
)  # fmt: skip

BAD_WEIGHT = (facts("up.weight", nan=1),)
AT = np.arange(STEPS)


def risen(step: int, low: float = 1e-4, high: float = 1e-2) -> np.ndarray:
    return np.where(step <= AT, high, low)


def with_rate(recording: Recording, rate: Any, name: str = "lr", **seen_with: Any) -> Finding:
    return found(recording, UP, seen(MODEL[UP], **({"weights": BAD_WEIGHT} | seen_with)), series={name: rate})


class TestLearningRate:
    @pytest.mark.parametrize("name", ["lr", "learning_rate"])
    def test_it_rose_some_steps_before(self, recording: Recording, name: str) -> None:
        finding = with_rate(recording, risen(BAD - 3), name)
        rose = "the learning rate rose from 0.0001 to 0.01 at step 27, 3 steps before."
        assert finding.summary.endswith(f"is the first to hold NaN; its weight up.weight held it already; {rose}")
        assert f"The{rose[3:]}" in finding.evidence
        assert finding.remedy[0].text == "Set the learning rate back to 0.0001, or raise it in small steps."
        assert finding.remedy[0].code.endswith("group['lr'] *= 0.01")
        assert (finding.facts["before"], finding.facts["cause_step"]) == ("learning_rate", 27)

    def test_one_parameter_group_s(self, recording: Recording) -> None:
        """What is logged is the largest of all."""
        named = event(Optimizers(("SGD",), groups=("embed.weight", "experts.4.0.weight")), 1, 2)
        rates = {"lr": risen(BAD - 3, 0.3, 5e3), "lr_group_0": 0.3, "lr_group_1": risen(BAD - 3, 0.3, 5e3)}
        finding = found(recording, UP, seen(MODEL[UP], weights=BAD_WEIGHT), named, series=rates)
        rose = "of parameter group 1 (experts.4.0.weight) rose from 0.3 to 5e+03 at step 27, 3 steps before"
        assert rose in finding.summary and finding.facts["where"] == "experts.4.0.weight"
        assert finding.remedy[0].code == "optimizer.param_groups[1]['lr'] *= 6e-05"

    @pytest.mark.parametrize("step", [BAD - 8, BAD - 1])
    def test_the_steps_that_count(self, recording: Recording, step: int) -> None:
        finding = with_rate(recording, risen(step))
        assert finding.facts["cause_step"] == step
        assert ("1 step before" in finding.summary) == (step == BAD - 1)

    def test_one_that_is_logged_now_and_then(self, recording: Recording) -> None:
        rate = np.where(AT % 5 == 4, risen(BAD - 3), np.nan)
        assert "from 0.0001 to 0.01 at step 29, 1 step before" in with_rate(recording, rate).summary

    def test_one_that_another_rank_logged(self, recording: Recording) -> None:
        recording.write(MODEL, STEPS, series={"lr": risen(BAD - 3)}, world_size=2)
        finding = found(recording, ACT, rank=1, world_size=2)
        assert (finding.rank, finding.facts["before"]) == (1, "learning_rate")

    def test_a_gradient(self, recording: Recording) -> None:
        finding = found(recording, 4, series={"lr": risen(BAD - 2), "loss": np.ones(STEPS)})
        assert (finding.kind, finding.facts["before"]) == ("grad", "learning_rate")

    def test_an_update_is_of_the_rate_of_its_own_step(self, recording: Recording) -> None:
        model = [*MODEL, tensor("up.weight", "update", 7)]
        finding = found(recording, 7, model=model, series={"lr": risen(BAD)})
        assert "at step 30, the same step" in finding.summary

    @pytest.mark.parametrize(
        "rate",
        [
            np.full(STEPS, 1e-3), (AT + 1) * 1e-5, 1e-3 * 0.9**AT, risen(BAD), risen(BAD - 9),
            risen(BAD - 3, 1e-4, 1.4e-4), risen(BAD - 3, 0.0, 1e-3), np.full(STEPS, np.nan),
            np.where(AT < BAD - 3, np.nan, 1e-2),
            np.where(AT == BAD - 20, 1e-2, risen(BAD - 3)),
        ],
        ids=["steady", "warm-up", "decay", "too late", "too early", "a little", "of zero", "none", "from then on only",
             "as high before"],
    )  # fmt: skip
    def test_no_rise_is_told(self, recording: Recording, rate: np.ndarray) -> None:
        finding = with_rate(recording, rate)
        assert finding.facts["before"] == ""
        assert "rose" not in finding.summary + text(finding)

    @pytest.mark.parametrize("steps", [1, 2, 3, 6])
    def test_nor_in_the_first_steps_of_a_warm_up(self, recording: Recording, steps: int) -> None:
        counts = np.zeros((len(MODEL), steps))
        counts[:, -1] = 1
        recording.write(MODEL, steps, {"nan_count": counts}, series={"lr": 1e-5 * np.arange(1, steps + 1)})
        (finding,) = recording.diagnose(RULE).findings
        assert finding.facts["before"] == ""

    def test_a_bad_batch_is_not_its_doing(self, recording: Recording) -> None:
        finding = with_rate(recording, risen(BAD - 3), model_inputs=[facts("x", nan=3)])
        assert (origin(finding)[0], finding.facts["before"]) == ("data", "")


class TestCheckpoint:
    START = 20

    def restarted(self, recording: Recording, step: int, *, first: bool = True, **reported: Any) -> Finding:
        """A process that goes on at `START` and is bad from `step` on."""
        if first:
            recording.write(MODEL, 25)
        counts = np.zeros((len(MODEL), 15))
        counts[:, step - self.START :] = 1
        event = Event("nonfinite", 1, step, "", seen(MODEL[UP], step, **reported).data)
        events = [event] if reported else []
        recording.write(MODEL, 15, {"nan_count": counts}, events=events, first=self.START, incarnation="b")
        (finding,) = recording.diagnose(RULE).findings
        assert finding.step == step
        return finding

    @pytest.mark.parametrize("first", [True, False])
    def test_a_weight_that_is_bad_at_its_first_step(self, recording: Recording, first: bool) -> None:
        """Started again, or told by `start_step` that it goes on."""
        finding = self.restarted(recording, self.START, first=first, weights=BAD_WEIGHT)
        first_step = "already at the first step after this process started"
        held = f"; its weight up.weight held it {first_step}: the checkpoint that was loaded holds it."
        assert finding.summary.endswith(held)
        assert f"It was so {first_step}, step 20: the checkpoint that was loaded holds it." in finding.evidence
        assert not any("turned bad after" in each for each in finding.evidence)
        assert "bad_tensors(optimizer.state_dict()" in finding.remedy[0].code
        assert (finding.facts["before"], origin(finding)[0]) == ("checkpoint", "weight")
        assert not any("In the step before" in each for each in finding.evidence)

    def test_a_weight_s_own_row(self, recording: Recording) -> None:
        model = [tensor("up.weight", "weight", 0), tensor("up", call_index=1)]
        recording.write(model, 25)
        recording.write(model, 5, {"nan_count": 1.0}, first=self.START, incarnation="b")
        (finding,) = recording.diagnose(RULE).findings
        assert "first to hold NaN; already at the first step after this process started: the" in finding.summary

    def test_a_weight_of_which_nothing_is_known(self, recording: Recording) -> None:
        finding = self.restarted(recording, self.START)
        assert "the checkpoint that was loaded may hold it in its weights." in text(finding)

    def test_weights_that_were_finite_clear_it(self, recording: Recording) -> None:
        finding = self.restarted(recording, self.START, weights=(facts("up.weight"),))
        assert finding.facts["before"] == ""

    def test_the_state_of_the_optimizer(self, recording: Recording) -> None:
        state = [facts("exp_avg_sq", 1e-4, inf=2, dtype="float32")]
        adam = {"class": "Adam", "parameter": "up.weight", "lr": 1e-3, "eps": 1e-8, "state": state}
        finding = self.restarted(recording, self.START + 1, weights=BAD_WEIGHT, optimizer=adam)
        assert "one step before: the optimizer's state came with the checkpoint." in text(finding)

    def test_what_turns_bad_later_is_none_of_its(self, recording: Recording) -> None:
        finding = self.restarted(recording, self.START + 1, weights=BAD_WEIGHT)
        assert finding.facts["before"] == ""
        assert any("turned bad after that forward" in each for each in finding.evidence)

    def test_a_run_that_begins_has_loaded_none_for_sure(self, recording: Recording) -> None:
        event = seen(MODEL[UP], 0, weights=BAD_WEIGHT)
        recording.write(MODEL, 5, {"nan_count": 1.0}, events=[event])
        (finding,) = recording.diagnose(RULE).findings
        assert finding.facts["before"] == ""
        assert "it was loaded, or initialised, so" in text(finding)


def test_a_row_of_an_embedding_may_have_been_bad_for_long(recording: Recording) -> None:
    model = [tensor("embed", module="Embedding"), tensor("embed.weight", "grad", 1)]
    finding = found(recording, 0, seen(model[0], weights=(facts("embed.weight", nan=8),)), model=model)
    assert "may have been bad for long." in text(finding)
    assert "turned bad after that forward" not in text(finding)


@pytest.mark.parametrize(("gradient", "cause"), [(1.0, "weight"), (1e9, "backward_arithmetic")])
def test_it_is_as_sure_as_the_jump_of_the_loss_before_it(recording: Recording, gradient: float, cause: str) -> None:
    """A weight that was overwritten in the step before, or moved by a gradient that was far too large."""
    amax = np.ones((len(MODEL), STEPS))
    amax[DOWN, BAD - 1 :] = 1e6
    amax[DOWN_WEIGHT, BAD - 2] = gradient
    loss = np.where(AT < BAD - 1, 1.0, np.where(AT == BAD - 1, 1e6, np.nan))
    given = [facts("input[0]")]
    finding = found(recording, DOWN, seen(MODEL[DOWN], inputs=given), columns={"amax": amax}, series={"loss": loss})
    assert (finding.facts["cause_class"], finding.facts["sureness"]) == (cause, "likely")
    assert any("wrote to the weights" in each.text for each in finding.remedy) == (cause == "weight")
    assert finding.facts["where"] == "down"


@pytest.mark.parametrize(("before", "is_weight"), [(3.0, True), (1e-6, False)])
def test_a_weight_that_was_not_so_large_in_the_step_before(
    recording: Recording, before: float, is_weight: bool
) -> None:
    """What it is given, 3 now, may have been as large in the step before, or have grown to that."""
    amax = np.ones((len(MODEL), STEPS))
    amax[UP] = np.where(AT < BAD, before, 3.0)
    given, weights = [facts("input[0]", 3.0)], (facts("down.weight", 5e4),)
    around = seen(MODEL[DOWN], inputs=given, model_inputs=[facts("input[0]")], weights=weights)
    finding = found(recording, DOWN, around, columns={"amax": amax}, series={"loss": np.ones(STEPS)})
    assert ("the weight was changed in between" in text(finding)) == is_weight
