"""A loss that jumped and stayed finite: what it is said to come from, by what rose with it and before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire import events
from rangewatch.wire.events import BatchRows, RowLoss
from rangewatch.wire.records import Event, TensorEntry
from rangewatch_server.rules import Finding
from rangewatch_server.rules.gradients import exploding_gradient
from rangewatch_server.rules.loss import loss_spike
from tests.server.rules.conftest import Recording, tensor

NOISE = np.random.default_rng(5)
STEPS, AT = 120, 100
TENSORS = [
    tensor("embed", call_index=0), tensor("mlp", call_index=1), tensor("head", call_index=2),
    tensor("head.weight", "grad", 3), tensor("mlp.weight", "update", 4), tensor("mlp.weight", "weight", 5),
]  # fmt: skip
EMBED, MLP, HEAD, GRAD, UPDATE, WEIGHT = range(6)


def jumped(high: int = 4) -> np.ndarray:
    loss = 2 + NOISE.normal(0, 0.05, STEPS)
    loss[AT : AT + high] += 3
    return loss


def height(*risen: tuple[int, int, float]) -> np.ndarray:
    """(tensors, steps) amax; `risen`: tensor, step and times as high from there on for four steps."""
    amax = 2.0 ** NOISE.normal(0, 0.1, (len(TENSORS), STEPS))
    for row, step, times in risen:
        amax[row, step : step + 4] *= times
    return amax


def found(recording: Recording, *risen: tuple[int, int, float], series: Any = None, **more: Any) -> Finding:
    columns = {"amax": height(*risen)}
    recording.write(TENSORS, STEPS, columns, series={"loss": jumped(), **(series or {})}, **more)
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    return finding


def cause(finding: Finding) -> Any:
    return finding.facts.get("cause_class")


def test_a_learning_rate_that_rose(recording: Recording) -> None:
    rate = np.full(STEPS, 1e-3)
    rate[AT - 2 : AT + 1] = 0.1
    finding = found(recording, (EMBED, AT - 1, 8.0), (MLP, AT - 1, 8.0), (GRAD, AT - 1, 30.0), series={"lr": rate})
    assert cause(finding) == "learning_rate" and finding.facts["sureness"] == "shown"
    text = " ".join(finding.evidence)
    assert "The learning rate rose from 0.001 to 0.1 at step 98, 2 steps before." in text
    assert "It took 4 steps until it was back." in text
    assert "Set the learning rate back to 0.001" in finding.remedy[0].text


@pytest.mark.parametrize(
    ("norms", "since", "expected"), [(3, AT, "eval"), (0, AT, "data"), (3, AT - 3, "eval"), (3, AT - 4, "data")]
)
def test_a_mode_that_changed_at_that_very_step_or_a_few_before(
    recording: Recording, norms: int, since: int, expected: str
) -> None:
    """Without running statistics nothing much changes."""
    known = [events.event(events.EvaluationMode(2, 1, norms, True), 1, since + 1)]
    finding = found(recording, (GRAD, AT, 30.0), events=known)
    assert cause(finding) == expected
    assert ("Call model.train()" in finding.remedy[0].text) == (expected == "eval")


def test_one_that_rose_at_that_very_step_had_no_part_in_it(recording: Recording) -> None:
    rate = np.full(STEPS, 1e-3)
    rate[AT:] = 0.1
    assert cause(found(recording, (GRAD, AT, 30.0), series={"lr": rate})) == "data"


def test_nothing_rose_before_the_loss_so_its_targets_are_left(recording: Recording) -> None:
    finding = found(recording, (GRAD, AT, 30.0))
    assert cause(finding) == "data" and finding.facts["sureness"] == "likely"
    assert "Look at the batch of step 100, its targets too" in finding.remedy[0].text
    assert not any("ower the learning rate" in each.text for each in finding.remedy)


@pytest.mark.parametrize("since", [0.0, 8.0])
def test_a_softmax_that_gives_no_zeros_any_more_has_lost_its_mask(recording: Recording, since: float) -> None:
    """Read at each 16th step: 8 of 32 elements before, and `since`."""
    is_read, each = np.arange(STEPS) % 16 == 0, np.arange(STEPS)
    softmax = [*TENSORS, tensor("mlp.softmax", call_index=6, module="Softmax")]
    columns: dict[str, Any] = {
        "amax": np.vstack([height(), np.full((1, STEPS), 0.5)]),
        "full_numel": np.where(is_read, 32.0, 0.0),
        "zero_count": np.where(is_read, np.where(each < AT, 8.0, since), 0.0),
    }
    recording.write(softmax, STEPS, columns, series={"loss": jumped(20)})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    is_lost = since == 0.0
    assert (cause(finding) == "mask") == is_lost
    assert ("must be -inf" in finding.remedy[0].text) == is_lost
    assert any("25% was exactly 0 at each reading before" in text for text in finding.evidence) == is_lost


def multiplied(by: float, usual: float = 2.0) -> dict[str, Any]:
    loss = usual * (1 + NOISE.normal(0, 0.025, STEPS))
    loss[AT : AT + 4] *= by
    return {"loss": loss}


@pytest.mark.parametrize(("usual", "factor", "expected"), [(0.006, 130.0, "data"), (0.006, 1e4, "forward_arithmetic")])
def test_a_cross_entropy_of_rows_that_were_nearly_right_rises_so_by_itself(
    recording: Recording, usual: float, factor: float, expected: str
) -> None:
    finding = found(recording, (GRAD, AT, factor), series=multiplied(factor, usual))
    assert cause(finding) == expected


def test_a_gradient_that_was_never_there_before(recording: Recording) -> None:
    """As of a layer that is thawed at that very step."""
    amax = height((GRAD, AT, 12.0))
    amax = np.vstack([amax, np.where(np.arange(STEPS) < AT, 0.0, 1.0)])
    tensors = [*TENSORS, tensor("new.weight", "grad", 6)]
    recording.write(tensors, STEPS, {"amax": amax}, series={"loss": multiplied(12.0)["loss"]})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert cause(finding) == "forward_arithmetic"


@pytest.mark.parametrize(("risen", "expected"), [(40.0, "forward_arithmetic"), (1.0, "data")])
def test_a_factor_multiplies_the_gradients_of_outputs_too(recording: Recording, risen: float, expected: str) -> None:
    """Of a cross entropy with labels that are wrong now and then, which are all wrong since: the sums over rows rise as
    the loss does, and at each output it is as wrong as it was."""
    tensors = [tensor("head", "grad_output", 0), tensor("mlp", "grad_output", 1), tensor("head.weight", "grad", 2)]
    amax = 2.0 ** NOISE.normal(0, 0.1, (3, STEPS))
    amax[2, AT:] *= 40.0
    amax[:2, AT:] *= risen
    recording.write(tensors, STEPS, {"amax": amax}, series=multiplied(40.0, 0.2))
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert cause(finding) == expected


@pytest.mark.parametrize("factor", [12.0, 1e4])
def test_gradients_that_rose_as_far_as_the_loss_say_that_it_was_multiplied(recording: Recording, factor: float) -> None:
    finding = found(recording, (GRAD, AT, factor), series=multiplied(factor))
    assert cause(finding) == "forward_arithmetic" and finding.facts["sureness"] == "likely"
    text = " ".join(finding.evidence)
    assert "what the loss was multiplied by" in text and "Less likely: the batch of that step." in text
    assert "Look at what multiplied the loss at step 100" in finding.remedy[0].text


@pytest.mark.parametrize(
    ("factor", "risen"),
    [
        (1e4, [(GRAD, AT, 100.0)]),  # a squared error of odd targets
        (64.0, [(GRAD, AT, 2.0)]),  # an absolute one
        (1e4, [(GRAD, AT, 1e4), (EMBED, AT, 100.0)]),  # what the model was given is odd
        (1e4, [(GRAD, AT, 1e4), (MLP, AT, 100.0)]),
        (4.0, [(GRAD, AT, 4.0)]),  # too little to tell
    ],
)  # fmt: skip
def test_others_do_not(recording: Recording, factor: float, risen: list[tuple[int, int, float]]) -> None:
    assert cause(found(recording, *risen, series=multiplied(factor))) in ("data", "weight")


def test_the_first_module_rose_at_that_step(recording: Recording) -> None:
    finding = found(recording, (EMBED, AT, 16.0), (MLP, AT, 16.0), (GRAD, AT, 30.0))
    assert cause(finding) == "data" and "The output of embed rose" in " ".join(finding.evidence)


def test_a_later_module_is_the_first_that_rose(recording: Recording) -> None:
    finding = found(recording, (MLP, AT, 16.0), (HEAD, AT, 16.0), (GRAD, AT, 30.0))
    assert (cause(finding), finding.tensor) == ("weight", "mlp")
    advice = " ".join(each.text for each in finding.remedy)
    assert "leave out" not in advice and "learning rate" not in advice


def test_the_first_update_that_was_too_large_for_its_weight(recording: Recording) -> None:
    finding = found(recording, (UPDATE, AT - 1, 50.0), (MLP, AT, 16.0))
    assert (cause(finding), finding.tensor) == ("weight", "mlp.weight")
    assert "is that of mlp.weight" in " ".join(finding.evidence)


def test_rows_with_far_larger_losses_show_the_batch(recording: Recording) -> None:
    rows = BatchRows((17, 203), 2, largest=(RowLoss(203, 80.0), RowLoss(17, 2.0)), median=2.0, loss_count=2)
    finding = found(recording, (MLP, AT, 16.0), events=[events.event(rows, 1, AT)])
    assert cause(finding) == "data" and finding.facts["sureness"] == "shown"
    assert "Row 203 had a loss of 80, 40 times the median." in " ".join(finding.evidence)


def test_one_rank_alone(recording: Recording) -> None:
    for rank in range(3):
        loss = jumped() if rank == 1 else 2 + NOISE.normal(0, 0.05, STEPS)
        loss = loss + (rank == 1) * np.where(np.arange(STEPS) >= AT, 6, 0)
        recording.write(TENSORS, STEPS, {"amax": height()}, series={"loss": loss}, rank=rank, world_size=3)
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert (cause(finding), finding.rank) == ("data", 1) and "Rank 1 alone is so high" in " ".join(finding.evidence)


def test_one_rank_alone_whose_output_no_batch_makes(recording: Recording) -> None:
    """A bit of a weight flipped there: its weights are not those of the others any more."""
    for rank in range(2):
        loss = 2 + NOISE.normal(0, 0.05, STEPS) + (rank == 1) * np.where(np.arange(STEPS) >= AT, 1e6, 0)
        amax = height()
        amax[MLP, AT:] *= 2.0**40 if rank == 1 else 1.0
        recording.write(TENSORS, STEPS, {"amax": amax}, series={"loss": loss}, rank=rank, world_size=2)
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert (cause(finding), finding.rank) == ("weight", 1)


def test_where_nothing_is_known_that_is_said(recording: Recording) -> None:
    recording.write([], STEPS, series={"loss": jumped()})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert cause(finding) is None and "Why is not known" in " ".join(finding.evidence)


def test_what_was_logged_at_that_step(recording: Recording) -> None:
    norm = np.full(STEPS, 0.5)
    norm[AT] = 40.0
    text = " ".join(found(recording, series={"lr": 1e-3, "grad_norm": norm}).evidence)
    assert "Logged at that step: the learning rate 0.001" in text
    assert "the norm of the gradients 40 (median of the steps before: 0.5)" in text


@pytest.mark.parametrize("stop", [AT + 4, AT + 8, STEPS])
def test_it_is_the_same_whenever_it_is_asked(recording: Recording, stop: int) -> None:
    recording.write(TENSORS, STEPS, {"amax": height((MLP, AT, 16.0))}, series={"loss": jumped()})
    (finding,) = recording.diagnose(loss_spike.RULE, stop=stop).findings
    assert (cause(finding), finding.tensor, finding.step) == ("weight", "mlp", AT)


@pytest.mark.parametrize("largest", [0.003, 0.5])
def test_one_parameter_group_s_rate_that_rose(recording: Recording, largest: float) -> None:
    """Another group's was higher before, or still is: `lr` has the largest."""
    at = np.arange(STEPS)
    seen = (at == AT - 3) | (at == AT - 2)
    second = np.where(at < AT - 2, 0.001, 0.3)
    groups = {"lr_group_0": np.where(seen, largest, np.nan), "lr_group_1": np.where(seen, second, np.nan)}
    named = events.event(events.Optimizers(classes=("Adam",), groups=("blocks.0.weight", "blocks.0.act_step")), 1, 0)
    rate = np.maximum(second, largest)
    finding = found(recording, (GRAD, AT - 1, 30.0), series={"lr": rate} | groups, events=[named])
    text = " ".join(finding.evidence)
    assert (
        "The learning rate of parameter group 1 (blocks.0.act_step) rose from 0.001 to 0.3 at step 98, 2 steps before, "
        "and that of another group did not."
    ) in text
    assert cause(finding) == "learning_rate" and "of parameter group 1 back to 0.001" in finding.remedy[0].text


def test_a_group_s_rate_that_fell_back_is_no_cause(recording: Recording) -> None:
    at, rose = np.arange(STEPS), (50, 51)
    second = np.where((at >= 50) & (at < 51), 0.02, 0.001)
    near = np.isin(at, (49, *rose))
    groups = {"lr_group_0": np.where(near, 0.001, np.nan), "lr_group_1": np.where(near, second, np.nan)}
    assert cause(found(recording, (GRAD, AT, 30.0), series={"lr": np.maximum(second, 0.001)} | groups)) == "data"


@pytest.mark.parametrize("is_hidden", [False, True])
def test_a_small_rise_of_a_group_hides_no_larger_one_before_it(recording: Recording, is_hidden: bool) -> None:
    at = np.arange(STEPS)
    near = np.isin(at, (49, 50, 79, 80))
    first = np.where((at >= 80) & is_hidden, 1.6e-3, 1e-3)
    second = np.where(at >= 50, 0.3, 1e-3)
    groups = {"lr_group_0": np.where(near, first, np.nan), "lr_group_1": np.where(near, second, np.nan)}
    finding = found(recording, series={"lr": second} | groups)
    assert "parameter group 1 rose from 0.001 to 0.3 at step 50" in " ".join(finding.evidence)


def test_a_learning_rate_that_turned_negative_long_before(recording: Recording) -> None:
    rate = np.linspace(1e-3, -1e-3, STEPS)
    finding = found(recording, (GRAD, AT, 30.0), series={"lr": rate})
    assert (cause(finding), finding.facts["sureness"]) == ("learning_rate", "shown")
    assert "has been negative since step 60" in " ".join(finding.evidence)
    advice = " ".join(each.text for each in finding.remedy)
    assert "must not fall below 0" in advice and "leave out" not in advice


def test_one_that_goes_on_growing(recording: Recording) -> None:
    finding = found(recording, series={"lr": 1e-4 * 1.1 ** np.arange(STEPS)})
    assert (cause(finding), finding.facts["sureness"]) == ("learning_rate", "likely")
    assert "went on growing" in " ".join(finding.evidence)


def test_one_that_rose_far_and_stayed(recording: Recording) -> None:
    rate = np.where(np.arange(STEPS) < AT - 30, 1e-3, 0.5)
    assert cause(found(recording, series={"lr": rate})) == "learning_rate"


def test_one_that_rose_a_little_long_before_had_no_part_in_it(recording: Recording) -> None:
    rate = np.where(np.arange(STEPS) < AT - 30, 1e-3, 2e-3)
    assert cause(found(recording, (GRAD, AT, 30.0), series={"lr": rate})) == "data"


def test_a_level_that_stays_is_not_of_one_batch(recording: Recording) -> None:
    loss = 2 + NOISE.normal(0, 0.05, AT + 60)
    loss[AT:] += 3
    recording.write([tensor("embed")], AT + 60, series={"loss": loss})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert not any("leave out" in each.text for each in finding.remedy)
    text = " ".join(finding.evidence)
    assert "leave out this batch" not in text and "how their loss is computed" in text
    assert "the loss is computed otherwise. Either may be meant." in text


def test_gradients_that_explode_behind_a_rate_that_rose(recording: Recording) -> None:
    rate = np.full(STEPS, 1e-3)
    rate[AT - 1 :] = 0.1
    amax = height()
    amax[GRAD, AT:] *= 1e4
    recording.write(TENSORS, STEPS, {"amax": amax}, series={"lr": rate})
    (finding,) = recording.diagnose(exploding_gradient.RULE).findings
    assert cause(finding) == "learning_rate" and "Set the learning rate back" in finding.remedy[0].text


def test_gradients_that_explode_behind_an_update_that_was_too_large(recording: Recording) -> None:
    amax = height((UPDATE, AT - 1, 50.0), (MLP, AT, 16.0))
    amax[GRAD, AT:] *= 1e4
    recording.write(TENSORS, STEPS, {"amax": amax})
    (finding,) = recording.diagnose(exploding_gradient.RULE).findings
    assert (cause(finding), finding.tensor) == ("weight", "head.weight")
    assert not any("ower the learning rate" in each.text for each in finding.remedy)


def loaded(*steps: int) -> list[Event]:
    return [events.event(events.StateLoaded("Adam"), 1, step) for step in steps]


def test_a_state_of_the_optimizer_that_was_loaded_right_before(recording: Recording) -> None:
    risen = ((EMBED, AT, 60.0), (MLP, AT, 60.0), (HEAD, AT, 60.0), (GRAD, AT, 900.0))
    finding = found(recording, *risen, events=loaded(AT - 1))
    assert cause(finding) == "optimizer"
    assert any("was loaded at step 99, 1 step before" in each for each in finding.evidence)
    assert "optimizer's state" in finding.remedy[0].text


def test_one_that_was_loaded_some_steps_before_a_loss_that_rises(recording: Recording) -> None:
    """As a learning rate, or maximize, that came with it: nothing else left its band."""
    finding = found(recording, events=loaded(AT - 15))
    assert (cause(finding), finding.facts["sureness"]) == ("optimizer", "likely")
    assert "maximize" in " ".join(finding.evidence)


def test_but_a_gradient_that_rose_with_the_loss_speaks_for_the_batch_more(recording: Recording) -> None:
    assert cause(found(recording, (GRAD, AT, 30.0), events=loaded(AT - 15))) == "data"


def test_one_that_was_loaded_long_before_or_often_is_no_cause(recording: Recording) -> None:
    finding = found(recording, (EMBED, AT, 60.0), events=loaded(10, 30, 50, 70))
    assert cause(finding) != "optimizer"


def test_one_that_is_loaded_now_and_then_is_no_cause(recording: Recording) -> None:
    finding = found(recording, (EMBED, AT, 60.0), events=loaded(39, 59, 79, AT - 1))
    assert cause(finding) != "optimizer"


def updated(
    recording: Recording, *risen: tuple[int, int, float], by: float, optimizer: str = "AdamW", tensors: Any = TENSORS,
    **series: Any,
) -> Finding:  # fmt: skip
    """The update before the jump moved a weight so many times as far as usual."""
    moved = 1e-3 * 2.0 ** NOISE.normal(0, 0.1, STEPS)
    moved[AT - 1] *= by
    sampled = events.event(events.SampledWeights(("head.bias",), are_held=True), 1, 1)
    all_series = {"loss": jumped(20), "sampled_update": moved, **series}
    known = events.event(events.Optimizers((optimizer,)), 1, 1)
    amax = height((EMBED, AT, 20.0), *risen)[: len(tensors)]
    recording.write(tensors, STEPS, {"amax": amax}, series=all_series, events=[sampled, known])
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    return finding


def test_an_update_that_no_gradient_and_no_rate_explains_is_of_the_optimizer_s_state(recording: Recording) -> None:
    """As where second moments are lost: all that was recorded of the step before is as usual."""
    finding = updated(recording, (GRAD, AT, 30.0), by=600.0, lr=np.full(STEPS, 1e-3))
    assert (finding.facts["cause_class"], finding.facts["sureness"]) == ("optimizer", "shown")
    assert "The update of step 99 moved head.bias" in " ".join(finding.evidence)
    assert "second moments" in finding.remedy[0].text


def test_an_update_of_sgd_is_as_large_as_what_it_was_given(recording: Recording) -> None:
    """It may keep nothing at all, and what was clipped by hand until then is recorded nowhere."""
    finding = updated(recording, (GRAD, AT, 30.0), by=600.0, optimizer="SGD", lr=np.full(STEPS, 1e-3))
    assert (finding.facts["cause_class"], finding.facts["sureness"]) == ("optimizer", "likely")
    assert "a clip that was left out" in " ".join(finding.evidence)


def test_gradients_that_are_no_longer_clipped(recording: Recording) -> None:
    norm = np.where(np.arange(STEPS) < AT - 1, 40.0, np.nan)
    finding = updated(recording, by=600.0, optimizer="SGD", clipped_norm=norm)
    assert cause(finding) == "clip" and "Clip the gradients in each step, as before" in finding.remedy[0].text


def test_gradients_that_are_not_recorded_are_not_said_to_be_usual(recording: Recording) -> None:
    assert cause(updated(recording, by=600.0, tensors=TENSORS[:GRAD])) != "optimizer"


RAISED = np.full(STEPS, 1e-3)
RAISED[AT - 1] = 0.6


@pytest.mark.parametrize(
    ("risen", "by", "rate"),
    [([(GRAD, AT - 1, 600.0)], 600.0, np.full(STEPS, 1e-3)), ([], 600.0, RAISED), ([], 3.0, np.full(STEPS, 1e-3))],
    ids=["a gradient", "the rate", "too little"],
)
def test_one_that_something_explains_is_not(recording: Recording, risen: Any, by: float, rate: np.ndarray) -> None:
    assert cause(updated(recording, *risen, by=by, lr=rate)) != "optimizer"


def given(recording: Recording, sizes: np.ndarray, **series: Any) -> Finding:
    """The first module's output rises with the loss, and stays high."""
    at = np.arange(STEPS)
    amax = height()
    amax[EMBED] = np.where(at >= AT, 5.0, 1.0) * amax[EMBED]
    all_series = {"loss": np.where(at >= AT, 6.5, 1.0) * (1 + 0.01 * NOISE.normal(0, 1, STEPS)), **series}
    recording.write(TENSORS, STEPS, {"amax": amax}, series={**all_series, "input_rms": sizes})
    return next(iter(recording.diagnose(loss_spike.RULE).findings))


@pytest.mark.parametrize("factor", [5.5, 1 / 255])
@pytest.mark.parametrize("every", [1, 4])
def test_inputs_of_another_size_are_the_data(recording: Recording, factor: float, every: int) -> None:
    at = np.arange(STEPS)
    sizes = np.where(at % every, np.nan, np.where(at >= AT, factor, 1.0))
    finding = given(recording, sizes)
    assert (finding.facts["cause_class"], finding.facts["sureness"]) == ("data", "shown")
    assert "root mean square of its first floating input" in " ".join(finding.evidence)


@pytest.mark.parametrize("until", [AT + 1, STEPS])
def test_inputs_that_stay_so_are_those_of_all_batches_since(recording: Recording, until: int) -> None:
    """Whether or not the model soon makes as little of them as before."""
    at = np.arange(STEPS)
    loss = np.where((at >= AT) & (at < AT + 12), 6.5, 1.0) * (1 + 0.01 * NOISE.normal(0, 1, STEPS))
    finding = given(recording, np.where((at >= AT) & (at < until), 5.5, 1.0), loss=loss)
    text, advice = " ".join(finding.evidence), finding.remedy[0].text
    assert ("the batches since that step" in text, "batches from step 100 on" in advice) == ((until == STEPS,) * 2)
    assert ("the batch of that step" in text, "the batch of step 100" in advice) == ((until != STEPS,) * 2)


def test_inputs_that_are_read_after_the_jump_are_only_likely_its_cause(recording: Recording) -> None:
    at = np.arange(STEPS)
    finding = given(recording, np.where(at % 4 != (AT + 2) % 4, np.nan, np.where(at >= AT, 5.5, 1.0)))
    assert (finding.facts["cause_class"], finding.facts["sureness"]) == ("data", "likely")
    assert f"had changed by step {AT + 2}" in " ".join(finding.evidence)


@pytest.mark.parametrize("kind", ["steady", "noisy", "before"])
def test_inputs_that_are_as_usual_show_nothing(recording: Recording, kind: str) -> None:
    at = np.arange(STEPS)
    sizes = {
        "steady": np.where(at >= AT, 1.3, 1.0),
        "noisy": np.where(at >= AT, 2.5, np.where(at % 3, 1.0, 2.2)),
        "before": np.where(at >= AT - 40, 5.5, 1.0),
    }[kind]
    assert given(recording, sizes).facts.get("sureness") != "shown"


def test_weights_that_were_written_between_two_steps(recording: Recording) -> None:
    """As those of an average that were left in the model: nothing leaves its band before the loss does."""
    written = np.zeros(STEPS)
    written[AT] = 0.03
    sampled = events.event(events.SampledWeights(("head.bias",), are_held=True), 1, 1)
    series = {"loss": jumped(20), "weights_written": written}
    recording.write(TENSORS, STEPS, {"amax": height()}, series=series, events=[sampled])
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert (finding.facts["cause_class"], finding.facts["sureness"]) == ("weight", "shown")
    assert not any("learning rate" in each.text for each in finding.remedy)
    assert "head.bias" in finding.evidence[1]


@pytest.mark.parametrize(("risen", "place"), [(HEAD, "head"), (MLP, None)])
def test_a_written_weight_is_the_place_if_its_module_is_the_first_that_rose(
    recording: Recording, risen: int, place: str | None
) -> None:
    """A sampled weight that was written may be one of many: of those that are not sampled it is not known."""
    written, amax = np.zeros(STEPS), height()
    written[AT] = 3.0
    amax[risen, AT:] *= 60
    sampled = events.event(events.SampledWeights(("embed.weight", "head.weight"), are_held=True), 1, 1)
    recording.write(
        TENSORS, STEPS, {"amax": amax}, series={"loss": jumped(20), "weights_written": written}, events=[sampled]
    )
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert (finding.facts["cause_class"], finding.tensor) == ("weight", place)


def test_code_that_writes_to_weights_in_every_step_is_no_cause(recording: Recording) -> None:
    """As one that keeps them in bounds."""
    series = {"loss": jumped(20), "weights_written": 0.01 + 0.02 * NOISE.random(STEPS)}
    recording.write(TENSORS, STEPS, {"amax": height()}, series=series)
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert finding.facts.get("cause_class") != "weight"


def after_writes(recording: Recording, rise: float, at: tuple[int, ...] = (60, 120)) -> Any:
    """A loss that falls, with a small rise for ten steps after each write to the weights."""
    steps = np.arange(180)
    loss = 4.0 - 0.01 * steps + np.random.default_rng(2).normal(0, 0.15, 180)
    written = np.zeros(180)
    for each in at:
        written[each] = 0.05
        loss[each : each + 10] += rise * np.linspace(1, 0, 10)
    series = {"loss": loss, "weights_written": written}
    recording.write(TENSORS, 180, {"amax": 1.0}, series=series)
    return recording.diagnose(loss_spike.RULE).findings


def test_a_small_rise_after_each_write_to_the_weights(recording: Recording) -> None:
    """As of an average that is left in a model whose loss is noisy: far from what shows a jump by itself."""
    (finding,) = after_writes(recording, 0.9)
    assert (finding.step, finding.severity, finding.facts["cause_class"]) == (60, "warning", "weight")
    assert "at 2 of 2 writes by other code than the optimizer to the weights that could be" in finding.evidence[0]


@pytest.mark.parametrize(("rise", "at"), [(0.0, (60, 120)), (0.9, ()), (1.5, (60,)), (0.9, tuple(range(40, 170, 10)))])
def test_writes_that_do_no_harm_one_alone_and_those_of_each_tenth_step(
    recording: Recording, rise: float, at: tuple[int, ...]
) -> None:
    assert after_writes(recording, rise, at) == ()


@pytest.mark.parametrize("how", ["no slope", "it varies", "units died"])
def test_a_loss_that_no_longer_depends_on_the_model(recording: Recording, how: str) -> None:
    """It is 1 from the jump on, and every gradient 0, while what the model gives is as usual."""
    amax, loss = height(), 0.3 * (1 + NOISE.normal(0, 0.05, STEPS))
    amax[GRAD, AT:], loss[AT:] = 0.0, 1.0
    if how == "it varies":
        loss[AT:] += NOISE.normal(0, 0.05, STEPS - AT)
    elif how == "units died":
        amax[MLP, AT:] = 0.0
    recording.write(TENSORS, STEPS, {"amax": amax}, series={"loss": loss})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert (cause(finding) == "no_gradient") == (how == "no slope")
    assert ("Compute the loss in float32" in finding.remedy[0].text) == (how == "no slope")


def test_the_group_whose_rate_rose_is_the_place(recording: Recording) -> None:
    rate = np.full(STEPS, 1e-3)
    raised = np.where(np.arange(STEPS) == AT - 1, 1.0, rate)
    known = [events.event(events.Optimizers(("AdamW",), groups=("embed.weight", "head.weight")), 1, 2)]
    series = {"lr": rate, "lr_group_0": rate, "lr_group_1": raised}
    finding = found(recording, (HEAD, AT, 8.0), (GRAD, AT, 30.0), series=series, events=known)
    assert (cause(finding), finding.tensor, finding.kind) == ("learning_rate", "head.weight", "grad")


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ((1, 1, 1), (32, 32, 32), "optimizer"),
        ((1, 8, 1), (1, 120, 1), "backward_arithmetic"),
        ((1, 1, 1), (1, 2, 1), "data"),
    ],
)
def test_modules_that_are_called_more_often_from_the_jump_on(
    recording: Recording, before: tuple[int, ...], now: tuple[int, ...], expected: str
) -> None:
    """Microbatches that are summed, a recurrence that became longer, and a layer that is used twice."""
    calls = np.ones((len(TENSORS), STEPS))
    calls[EMBED : HEAD + 1] = np.where(np.arange(STEPS) < AT, np.array(before)[:, None], np.array(now)[:, None])
    risen = ((MLP, AT, 30.0),) if expected == "backward_arithmetic" else ()
    columns = {"amax": height((GRAD, AT, 30.0), *risen), "call_count": calls}
    recording.write(TENSORS, STEPS, columns, series={"loss": jumped(20)})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert cause(finding) == expected
    assert ("Divide each microbatch's loss" in finding.remedy[0].text) == (expected == "optimizer")


@pytest.mark.parametrize(
    ("calls", "risen", "expected"),
    [
        (32, 1.0, ("info", None)),  # the mean of the losses is trained on, and their sum is logged
        (32, 2.0, ("info", None)),
        (32, 6.0, ("warning", "optimizer")),  # what differs from one to the next is summed so
        (32, 30.0, ("warning", "optimizer")),
        (2, 1.0, ("warning", "data")),  # the loss rose further than their number
    ],
)
def test_microbatches_are_summed_where_gradients_rise(
    recording: Recording, calls: int, risen: float, expected: tuple[str, str | None]
) -> None:
    counts = np.ones((len(TENSORS), STEPS))
    counts[EMBED : HEAD + 1] = np.where(np.arange(STEPS) < AT, 1, calls)
    columns = {"amax": height((GRAD, AT, risen)), "call_count": counts}
    recording.write(TENSORS, STEPS, columns, series={"loss": jumped(20) * np.where(np.arange(STEPS) < AT, 1, 5)})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert (finding.severity, cause(finding)) == expected
    assert ("Divide what is logged" in finding.remedy[0].text) == (expected[0] == "info")


@pytest.mark.parametrize(("first", "severity"), [(9.0, "info"), (2.0, "warning")])
@pytest.mark.parametrize("gradient", [1.0, 30.0])
def test_a_recurrence_that_is_longer_multiplies_nothing_where_no_value_rose(
    recording: Recording, first: float, severity: str, gradient: float
) -> None:
    """What comes last is harder to foresee, and gradients rise with the loss; nothing is wrong if it was as high."""
    counts = np.ones((len(TENSORS), STEPS))
    counts[MLP] = np.where(np.arange(STEPS) < AT, 4, 16)
    loss = np.where(np.arange(STEPS) < 10, first, jumped(20))
    columns = {"amax": height((GRAD, AT, gradient)), "call_count": counts}
    recording.write(TENSORS, STEPS, columns, series={"loss": loss})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert finding.severity == severity and cause(finding) != "backward_arithmetic"
    assert not any("truncated" in each.text for each in finding.remedy)


@pytest.mark.parametrize(
    ("optimizer", "risen", "expected"),
    [("SGD", 1e6, "backward_arithmetic"), ("SGD", 8.0, "weight"), ("Adam", 1e6, "weight")],
)
def test_a_gradient_that_moved_its_module_far(
    recording: Recording, optimizer: str, risen: float, expected: str
) -> None:
    """In the step before, whose loss was as usual: the backward made it. Adam's updates are as large as its rate."""
    known = [events.event(events.Optimizers((optimizer,)), 1, 2)]
    recording.write(
        TENSORS, STEPS, {"amax": height((GRAD, AT - 1, risen), (HEAD, AT, 1e3))}, series={"loss": jumped(20)},
        events=known,
    )  # fmt: skip
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert cause(finding) == expected
    assert ("See what wrote" in " ".join(each.text for each in finding.remedy)) == (expected == "weight")


@pytest.mark.parametrize(("at", "severity"), [(AT, "info"), (AT - 20, "warning")])
def test_a_head_that_is_made_anew_has_to_be_learned(recording: Recording, at: int, severity: str) -> None:
    known = [events.event(events.Optimizers(("SGD",), renewed=("head.weight",)), 1, at)]
    finding = found(recording, (GRAD, AT, 30.0), events=known)
    assert finding.severity == severity


OUTPUTS, OUTPUTS_OF = (
    ["", "head", "mlp", "embed"],
    [tensor("head.weight", "grad", 8), tensor("embed.weight", "grad", 9)],
)


@pytest.mark.parametrize(
    ("risen", "expected", "place"),
    [
        (["mlp", "embed", "embed.weight"], "regularization", "mlp"),
        (["head.weight", "embed.weight"], "regularization", "head.weight"),
        (["", "head", "mlp", "embed", "head.weight", "embed.weight"], "data", None),
        (["head", "mlp", "embed", "embed.weight"], "regularization", "head"),
    ],
    ids=["a penalty on an inner output", "one on the weights", "rows or targets", "behind the model's last layer"],
)
def test_a_term_of_the_loss_that_was_raised(
    recording: Recording, risen: list[str], expected: str, place: str | None
) -> None:
    layers = [tensor(name, "grad_output", at, dtype="float32") for at, name in enumerate(OUTPUTS)] + OUTPUTS_OF
    amax = 2.0 ** NOISE.normal(0, 0.05, (len(layers), STEPS))
    for at, each in enumerate(layers):
        amax[at, AT:] *= 20.0 if each.fqn in risen else 1.0
    recording.write(layers, STEPS, {"amax": amax}, series={"loss": jumped(20)})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert (cause(finding), finding.tensor) == (expected, place)
    assert ("a sum in place of a mean" in finding.remedy[0].text) == (expected == "regularization")


def test_a_penalty_on_a_mean_raises_sums_more_than_what_they_are_of(recording: Recording) -> None:
    """It is of one sign in all elements."""
    layers = [tensor(name, "grad_output", at, dtype="float32") for at, name in enumerate(OUTPUTS)] + OUTPUTS_OF
    amax = 2.0 ** NOISE.normal(0, 0.05, (len(layers), STEPS))
    amax[2:4, AT:] *= 6.0
    amax[5, AT:] *= 500.0
    recording.write(layers, STEPS, {"amax": amax}, series={"loss": jumped(20)})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert (cause(finding), finding.tensor) == ("regularization", "mlp")


@pytest.mark.parametrize(("times", "loss", "is_told"), [(1e4, 2.0, True), (20.0, 2.0, False), (1e4, 2.5, False)])
def test_a_backward_of_what_was_multiplied_after_it_was_logged(
    recording: Recording, times: float, loss: float, is_told: bool
) -> None:
    """As by the weight of one batch. What rises with the loss is no factor that the loss has not."""
    layers = [tensor(name, "grad_output", at, dtype="float32") for at, name in enumerate(OUTPUTS)] + OUTPUTS_OF
    amax = 2.0 ** NOISE.normal(0, 0.05, (len(layers), STEPS))
    amax[:, AT : AT + 5] *= times
    values = 2 + NOISE.normal(0, 0.05, STEPS)
    values[AT] = loss
    recording.write(layers, STEPS, {"amax": amax}, series={"loss": values})
    found = recording.diagnose(exploding_gradient.RULE).findings
    text = " ".join(sentence for each in found for sentence in each.evidence)
    assert ("the loss that is logged did not" in text) == is_told


@pytest.mark.parametrize(
    ("first", "loss", "expected"),
    [(1, 2.0, ("backward_arithmetic", "mlp")), (0, 2.0, ("forward_arithmetic", None)), (1, 9.0, None)],
    ids=["inside", "from the loss on", "the loss rose"],
)  # fmt: skip
def test_a_backward_that_makes_gradients_large_in_the_midst_of_the_model(
    recording: Recording, first: int, loss: float, expected: tuple[str, str | None] | None
) -> None:
    """What lies nearer to the loss has usual gradients, and what lies before it a thousand times as large."""
    layers = [tensor(name, "grad_output", at, dtype="float32") for at, name in enumerate(("head", "mlp", "embed"))]
    layers += [tensor(f"{name}.weight", "grad", 3 + at) for at, name in enumerate(("head", "mlp", "embed"))]
    amax = 2.0 ** NOISE.normal(0, 0.05, (6, STEPS))
    amax[first:3, AT : AT + 5] *= 1e3
    amax[3 + first :, AT : AT + 5] *= 1e3
    values = 2 + NOISE.normal(0, 0.05, STEPS)
    values[AT] = loss
    recording.write(layers, STEPS, {"amax": amax}, series={"loss": values})
    finding = recording.diagnose(exploding_gradient.RULE).findings[0]
    if expected is None:
        assert cause(finding) != "backward_arithmetic"
    else:
        assert (cause(finding), finding.facts.get("where")) == expected


@pytest.mark.parametrize(
    ("times", "early", "expected"),
    [(800.0, 1.0, "forward_arithmetic"), (8.0, 1.0, "data"), (800.0, 500.0, "data")],
    ids=["further than the loss", "by the root of it", "as at first"],
)  # fmt: skip
def test_the_losses_of_some_rows_that_are_multiplied(
    recording: Recording, times: float, early: float, expected: str
) -> None:
    """Of one expert's rows: the gradients of the others are as usual. A cross entropy's are bounded."""
    layers = [tensor(name, "grad_output", at, dtype="float32") for at, name in enumerate(("", "one", "two", "three"))]
    layers += [tensor(f"{name}.weight", "grad", 4 + at) for at, name in enumerate(("one", "two", "three"))]
    amax = 2.0 ** NOISE.normal(0, 0.05, (7, STEPS))
    amax[[0, 1, 4], AT:] *= times
    amax[0, :8] *= early
    loss = 2 + NOISE.normal(0, 0.05, STEPS)
    loss[AT:] *= 200
    recording.write(layers, STEPS, {"amax": amax}, series={"loss": loss})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert cause(finding) == expected


@pytest.mark.parametrize(
    ("calls", "after", "expected"),
    [(3.0, 3.0, "data"), (1.0, 1.0, "weight"), (3.0, 1.0, "weight"), (9.0, 9.0, "weight")],
)
def test_a_module_that_is_called_with_data_of_its_own(
    recording: Recording, calls: float, after: float, expected: str
) -> None:
    """A discriminator is called more often than the generator before it: once of the data alone. So is a cell of a
    recurrence, which has a head behind it, or is called at each place."""
    layers = [tensor(name, call_index=at) for at, name in enumerate(("maker", "judge", "head"))]
    layers += [tensor("judge.weight", "grad", 3)]
    amax = 2.0 ** NOISE.normal(0, 0.1, (4, STEPS))
    amax[1:, AT:] *= 1e6
    count = np.array([1.0, calls, after, 1.0])[:, None]
    recording.write(layers, STEPS, {"amax": amax, "call_count": count}, series={"loss": jumped(20)})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert cause(finding) == expected


@pytest.mark.parametrize(("after", "expected"), [(1e3, "learning_rate"), (5.0, "data")])
def test_a_rate_that_rose_at_the_very_step_of_a_small_rise(recording: Recording, after: float, expected: str) -> None:
    """Its update shows one step later, and far more."""
    rate = np.where(np.arange(STEPS) >= AT, 0.1, 1e-3)
    loss = 2 + NOISE.normal(0, 0.05, STEPS)
    loss[AT], loss[AT + 1 :] = 4.0, after
    recording.write(TENSORS, STEPS, {"amax": height((GRAD, AT + 1, 30.0))}, series={"loss": loss, "lr": rate})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert (finding.step, cause(finding)) == (AT, expected)


SUMS = [
    tensor(name, "grad", 8 + at, dtype="float32") for at, name in enumerate(("out.bias", "out.weight", "in.weight"))
]
WEIGHTS = [tensor(each.fqn, "weight", 20 + at, dtype="float32") for at, each in enumerate(SUMS)]


@pytest.mark.parametrize(
    ("gradients", "expected"),
    [([1.0, 1.0, 1.0], "regularization"), ([0.2, 1.0, 4.0], "regularization"), ([1.0, 0.3, 0.4], "data")],
    ids=["a penalty on magnitudes", "one on squares", "rows that are wrong in one direction"],
)
def test_sums_over_rows_are_no_penalty(recording: Recording, gradients: list[float], expected: str) -> None:
    """The gradient of an absolute error is as large as ever at each output; that of a bias is the sum of them."""
    layers = [*(tensor(name, "grad_output", at, dtype="float32") for at, name in enumerate(OUTPUTS)), *SUMS, *WEIGHTS]
    amax = 2.0 ** NOISE.normal(0, 0.05, (len(layers), STEPS))
    amax[4:7, :AT], amax[4:7, AT:] = 0.02, np.array(gradients)[:, None]
    amax[7:] = np.array([0.2, 1.0, 4.0])[:, None]
    recording.write(layers, STEPS, {"amax": amax}, series={"loss": jumped(20)})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert cause(finding) == expected
    (said,) = [each for each in finding.evidence if "of no output did" in each]
    assert ("so do rows" in said, said.startswith("Less likely")) == ((expected == "data",) * 2)


def test_what_is_given_to_all_rows_sums_their_gradients(recording: Recording) -> None:
    """As a context does: it rises where more rows are wrong, and so do the parameters behind it."""
    layers = [
        *(tensor(name, "grad_output", at, dtype="float32") for at, name in enumerate(("", "head"))),
        tensor("head.weight", "grad", 2, dtype="float32"), tensor("context", "grad_output", 3, dtype="float32"),
    ]  # fmt: skip
    amax = 2.0 ** NOISE.normal(0, 0.05, (len(layers), STEPS))
    amax[2:, AT:] *= 20.0
    recording.write(layers, STEPS, {"amax": amax}, series={"loss": jumped(20)})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert cause(finding) == "data"


def test_that_of_another_output_of_the_model(recording: Recording) -> None:
    """It returns what is to be paid, too, and the loss takes that times 100 now."""
    second = TensorEntry("", "grad_output", 1, "float32", (), 0, "Net")
    layers = [second, *(tensor(name, "grad_output", at + 1, dtype="float32") for at, name in enumerate(OUTPUTS))]
    amax = 2.0 ** NOISE.normal(0, 0.05, (len(layers), STEPS))
    amax[0, AT:], amax[3:, AT:] = 100.0, 20.0
    recording.write(
        [*layers, *OUTPUTS_OF], STEPS, {"amax": np.vstack([amax, np.ones((2, STEPS))])}, series={"loss": jumped(20)}
    )
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert cause(finding) == "regularization" and "computed from the output of the model," in finding.remedy[0].text


def test_a_weight_that_was_changed_is_no_term(recording: Recording) -> None:
    """It raises the gradients before it, and what its module gives."""
    layers = [
        tensor("head", call_index=0),
        *(tensor(n, "grad_output", at + 1, dtype="float32") for at, n in enumerate(OUTPUTS)),
    ]
    amax = 2.0 ** NOISE.normal(0, 0.05, (len(layers), STEPS))
    amax[0, AT:], amax[3:, AT:] = 50.0, 20.0
    recording.write(layers, STEPS, {"amax": amax}, series={"loss": jumped(20)})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert cause(finding) != "regularization"


@pytest.mark.parametrize(
    ("idle", "name", "expected"), [((1, 3), "experts", True), ((), "experts", False), ((1, 3), "layers", False)]
)
def test_experts_that_no_row_reaches_any_more(recording: Recording, idle: Any, name: str, expected: bool) -> None:
    layers = [tensor(f"{name}.{each}.weight", "grad", each, dtype="float32") for each in range(4)]
    amax = 2.0 ** NOISE.normal(0, 0.05, (4, STEPS))
    amax[list(idle), AT:] = 0.0
    recording.write(layers, STEPS, {"amax": amax}, series={"loss": jumped(20)})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert (cause(finding) == "dead_units") == expected
    assert not expected or (finding.tensor, "router" in finding.remedy[0].text) == ("experts.1.weight", True)


@pytest.mark.parametrize("is_called", [True, False])
def test_experts_that_are_frozen_get_rows(recording: Recording, is_called: bool) -> None:
    """They have no gradient at all, and are called as before."""
    names = [f"experts.{each}" for each in range(4)]
    layers = [tensor(each, call_index=at, dtype="float32") for at, each in enumerate(names)]
    layers += [tensor(f"{each}.weight", "grad", at + 4, dtype="float32") for at, each in enumerate(names)]
    calls = np.ones((8, STEPS))
    calls[[4, 6], AT:], calls[[0, 2], AT:] = 0, is_called
    recording.write(
        layers, STEPS, {"amax": 2.0 ** NOISE.normal(0, 0.05, (8, STEPS)) * calls, "call_count": calls},
        series={"loss": jumped(20)},
    )  # fmt: skip
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert (cause(finding) == "dead_units") == (not is_called)


@pytest.mark.parametrize(
    ("since", "was_alive", "is_told"), [(AT + 1, True, True), (AT, True, True), (AT, False, False)]
)
def test_a_layer_of_relus_that_died_at_that_very_step(
    recording: Recording, since: int, was_alive: bool, is_told: bool
) -> None:
    """In the step itself it may have been called before, without gradient. One that never gave anything is no news."""
    layers = [tensor("up", call_index=0), TensorEntry("act", "output", 0, "float32", (4, 8), 1, "ReLU")]
    layers += [tensor("up.weight", "grad", 2)]
    amax = 2.0 ** NOISE.normal(0, 0.05, (3, STEPS))
    amax[1] *= was_alive
    amax[1:, since:] = 0.0
    recording.write(layers, STEPS, {"amax": amax}, series={"loss": jumped(20)})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert (cause(finding) == "dead_units", finding.tensor == "act") == (is_told, is_told)
    assert not is_told or "the layer before act" in finding.remedy[0].text


def test_gradients_that_rise_alone_are_of_no_term(recording: Recording) -> None:
    """A backward that multiplies: the loss is as usual in that step, and jumps by what the update does."""
    layers = [tensor(name, "grad_output", at, dtype="float32") for at, name in enumerate(OUTPUTS)] + OUTPUTS_OF
    amax = 2.0 ** NOISE.normal(0, 0.05, (len(layers), STEPS))
    amax[2:, AT - 1 :] *= 200.0
    recording.write(layers, STEPS, {"amax": amax}, series={"loss": jumped(20)})
    (finding,) = recording.diagnose(exploding_gradient.RULE).findings
    assert cause(finding) != "regularization"


MEAN, SUM, TERM = ("Mean", "Pow", "Sub"), ("Sum", "Pow", "Sub"), ("Add", "Mean", "Pow")
CLASSES = ("NllLoss mean", "Index")
STAYING = np.r_[2 + NOISE.normal(0, 0.05, AT), np.full(STEPS - AT, 5.0)]
FALLING = np.r_[2 + NOISE.normal(0, 0.05, AT), 5 * 0.95 ** np.arange(STEPS - AT)]


@pytest.mark.parametrize(
    ("after", "since", "loss", "expected"),
    [
        (SUM, AT, None, ("warning", "forward_arithmetic", "Take the mean again")),
        (SUM, AT, FALLING, ("warning", "forward_arithmetic", "Take the mean again")),
        (CLASSES, AT, STAYING, ("warning", "forward_arithmetic", "Look at which loss")),
        (CLASSES, AT, FALLING, ("info", None, "Look whether the loss is meant to be another")),
        (TERM, AT, FALLING, ("info", None, "Look whether the loss is meant to be another")),
        (TERM, AT, 10 * FALLING - 9 * FALLING[0], ("warning", "regularization", "Look at which loss")),
        (MEAN, AT, None, ("warning", "data", "Look at the batch")),
        (SUM, AT - 1, None, ("warning", "data", "Look at the batch")),
    ],
    ids=["a sum", "a sum that is learned", "another", "another that is learned", "a term more", "a far larger term",
        "the same of other shapes", "the step before"],
)  # fmt: skip
def test_a_loss_that_is_computed_otherwise(
    recording: Recording, after: tuple[str, ...], since: int, loss: Any, expected: tuple[str, str | None, str]
) -> None:
    known = [events.event(events.LossChanged(MEAN, after), 1, since)]
    series = {} if loss is None else {"loss": loss}
    finding = found(recording, (GRAD, AT, 30.0), series=series, events=known)
    severity, named, advice = expected
    assert (finding.severity, cause(finding)) == (severity, named)
    assert finding.remedy[0].text.startswith(advice)
    text = f"Nearest to it are {', '.join(after)}, and were Mean, Pow, Sub."
    assert (text in " ".join(finding.evidence)) == (since == AT and after != MEAN)


@pytest.mark.parametrize(
    ("scale", "expected"), [(65536.0, "loss_scale"), (1e9, "regularization"), (16.0, "regularization")]
)
def test_a_term_that_is_made_of_scaled_gradients(recording: Recording, scale: float, expected: str) -> None:
    known = [events.event(events.LossChanged(("Mul", *MEAN), ("Mul", "Add", "Mean", "Mul")), 1, AT)]
    series = {"loss": np.r_[2 + NOISE.normal(0, 0.05, AT), np.full(STEPS - AT, 2e7)], "loss_scale": scale}
    finding = found(recording, (GRAD, AT, 1e6), series=series, events=known, loss_scaled=True)
    assert cause(finding) == expected
    assert ("by the loss scale" in finding.remedy[0].text) == (expected == "loss_scale")


@pytest.mark.parametrize(
    ("first", "high", "severity"), [(1e-2, 12, "info"), (1e-3, 12, "warning"), (1e-2, 100, "warning")],
    ids=["as high before", "never so high", "and it stays"],
)  # fmt: skip
def test_a_schedule_that_begins_anew(recording: Recording, first: float, high: int, severity: str) -> None:
    """A cosine with warm restarts, each of 100 steps."""
    steps, at = 240, np.arange(240)
    rate = np.where(at < 100, first, 1e-2) * (1 + np.cos(np.pi * (at % 100) / 100)) / 2
    loss = 2 + NOISE.normal(0, 0.05, steps)
    loss[101 : 101 + high] += 3
    recording.write(TENSORS, steps, series={"loss": loss, "lr": rate})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert (finding.step, finding.severity) == (101, severity)
    assert ("a schedule with restarts" in " ".join(finding.evidence)) == (severity == "info")
    assert finding.remedy[0].text.startswith("Where restarts are meant") == (severity == "info")
