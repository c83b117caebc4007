"""What led to a NaN stays the root of it; what turned gradients bad before the optimizer; a mask that hides a row."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from rangewatch.wire import events
from rangewatch.wire.records import Event
from rangewatch_server.rules import Finding, Remedy
from rangewatch_server.rules.diagnosis import joined
from rangewatch_server.rules.gradients import exploding_gradient
from rangewatch_server.rules.nonfinite import first_nonfinite, loss_nonfinite
from tests.server.rules.conftest import Recording, tensor
from tests.server.rules.test_first_nonfinite_origin import BAD, MODEL, STEPS, UP, facts, found, seen, text

BAD_WEIGHT = (facts("up.weight", nan=1),)
EXPLODES, NAN = 150, 190
LAYERS = [
    tensor("up", call_index=0, dtype="float32"), tensor("up", "grad_output", 1, "float32"),
    tensor("up.weight", "grad", 2, "float32"), tensor("head.weight", "grad", 3, "float32"),
]  # fmt: skip
RULES = exploding_gradient.RULE, first_nonfinite.RULE, loss_nonfinite.RULE


def exploding(recording: Recording, grown: float, *, bad: int = 1, nan_at: int = NAN, steps: int = 260) -> None:
    """Gradients grow by `grown` bits a step from `EXPLODES` on; from `nan_at` on all from tensor `bad` on is NaN."""
    noise = np.exp(np.random.default_rng(1).normal(0, 0.3, (4, steps)))
    at = np.arange(steps)
    amax = noise * np.where(np.arange(4)[:, None] > 0, 2.0 ** np.clip(grown * (at - EXPLODES + 1), 0, 124), 1.0)
    nans = (np.arange(4)[:, None] >= bad) & (at >= nan_at) | (at > nan_at)
    loss = np.where(at > nan_at, np.nan, 2.0)
    recording.write(LAYERS, steps, {"amax": amax, "nan_count": nans * 4.0}, series={"loss": loss})


def test_gradients_that_exploded_stay_the_root_of_the_nan_they_led_to(recording: Recording) -> None:
    exploding(recording, 3.0)
    (night,) = recording.diagnose(*RULES, stop=165).findings
    root, nan = recording.diagnose(*RULES).findings
    assert (root.rule, root.step, root.tensor) == (night.rule, night.step, night.tensor)
    assert (nan.rule, nan.severity, nan.step) == ("first_nonfinite", "critical", NAN)
    assert root.consequences[0] == nan.summary and any(root.summary in each for each in nan.evidence)


def test_a_nan_of_another_cause_is_no_consequence(recording: Recording) -> None:
    """The gradients grew to far below the limit, and stayed there."""
    noise = np.exp(np.random.default_rng(1).normal(0, 0.3, (4, 260)))
    amax = noise * np.where((np.arange(4)[:, None] > 0) & (np.arange(260) >= EXPLODES), 2.0**7, 1.0)
    nans = (np.arange(4)[:, None] >= 1) & (np.arange(260) >= NAN) | (np.arange(260) > NAN)
    recording.write(LAYERS, 260, {"amax": amax, "nan_count": nans * 4.0})
    first, other = recording.diagnose(*RULES).findings
    assert (first.rule, other.rule) == ("first_nonfinite", "exploding_gradient")
    assert other.consequences == () and not any("It follows" in each for each in first.evidence)


def rose(**more: Any) -> Finding:
    usual = {"rule": "exploding_gradient", "severity": "warning", "rank": 0, "step": 150, "summary": "rose"}
    return Finding(**usual | {"facts": {"seen_step": 154}} | more)


def nan(**more: Any) -> Finding:
    usual = {"rule": "first_nonfinite", "severity": "critical", "rank": 0, "step": 170, "summary": "NaN"}
    return Finding(**usual | more)


LED_TO = {"exploding_gradient": frozenset(exploding_gradient.RULE.leads_to), "first_nonfinite": frozenset[str]()}
NONE = {name: frozenset[str]() for name in (*LED_TO, "rank_died")}


@pytest.mark.parametrize(
    ("root", "finding"),
    [
        (rose(rank=1), nan()), (rose(facts={"seen_step": 170}), nan()),
        (rose(facts={"seen_step": 154, "is_over": True}), nan()), (rose(), nan(facts={"of_magnitude": False})),
        (rose(), nan(facts={"cause_step": 150})),
    ],
    ids=["another rank's", "not yet seen", "over", "shows another cause", "began before"],
)  # fmt: skip
def test_what_is_no_root(root: Finding, finding: Finding) -> None:
    apart = joined([root, finding], NONE, LED_TO)
    assert [each.rule for each in apart] == ["first_nonfinite", "exploding_gradient"]
    assert not any(each.consequences for each in apart)


MOVED = {"seen_step": 154, "cause_class": "weight", "where": "tower.0"}


@pytest.mark.parametrize(
    ("root", "equal", "tensor", "follows"),
    [
        ({}, 149, "tower.0.weight", True), ({}, 150, "tower.0.weight", False), ({}, None, "tower.0.weight", False),
        ({}, 149, "tower.2.weight", False), ({"rank": None}, 149, "tower.0.weight", False),
        ({"rank": 0}, 149, "tower.0.weight", False), ({"facts": {"seen_step": 154}}, 149, "tower.0.weight", False),
        ({"facts": MOVED | {"seen_step": 199}}, 149, "tower.0.weight", False),
    ],
    ids=[
        "moved", "alike since", "never alike", "another weight", "no rank", "a rank of the majority", "no cause",
        "seen later",
    ],
)  # fmt: skip
def test_a_weight_that_moved_on_one_rank_and_the_replicas_of_it(
    root: dict[str, Any], equal: int | None, tensor: str, follows: bool
) -> None:
    """A bit flipped at step 149, the loss of that rank at 150 shows it, and replicas are compared at step 199."""
    replicas = Finding(
        rule="replica_mismatch", severity="critical", step=199, tensor=tensor, summary="ranks 0 and 1 differ",
        facts={"last_equal_step": equal, "majority_ranks": [0]},
    )  # fmt: skip
    moved = rose(**{"rank": 1, "facts": MOVED} | root)
    led_to = LED_TO | {"replica_mismatch": frozenset[str]()}
    order = joined([replicas, moved], NONE | {"replica_mismatch": frozenset[str]()}, led_to)
    assert [each.rule for each in order] == ["exploding_gradient", "replica_mismatch"][:: 1 if follows else -1]
    assert ("ranks 0 and 1 differ" in order[0].consequences) == follows


def test_a_root_stands_where_the_worst_that_it_led_to_would() -> None:
    other = Finding(rule="rank_died", severity="critical", rank=0, step=10, summary="died")
    order = joined([rose(), nan(), other], NONE, LED_TO)
    assert [each.rule for each in order] == ["rank_died", "exploding_gradient", "first_nonfinite"]


@pytest.mark.parametrize("is_state", [True, False])
def test_a_state_is_the_root_of_what_comes_before_it_could_be_said(is_state: bool) -> None:
    """As `eval()`, which is reported once it has lasted: it is no judgement of values."""
    root = rose(facts={"seen_step": 175, "is_state": is_state})
    order = joined([root, nan()], NONE, LED_TO)
    assert [each.rule for each in order] == ["exploding_gradient", "first_nonfinite"][:: 1 if is_state else -1]


@pytest.mark.parametrize(
    ("cause", "summary", "advice"),
    [
        ("learning_rate", "NaN.", "Mend what it follows from first: Leave the batch out."),
        ("data", "NaN; too high a rate.", "Lower the learning rate."),
    ],
    ids=["another cause", "its cause"],
)
def test_a_root_s_advice_takes_the_place_of_a_consequence_s_own(cause: str, summary: str, advice: str) -> None:
    root = rose(remedy=(Remedy("Leave the batch out."),), facts={"seen_step": 154, "cause_class": "data"})
    facts = {"cause_class": cause, "clause": "; too high a rate"}
    later = nan(summary="NaN; too high a rate.", remedy=(Remedy("Lower the learning rate."),), facts=facts)
    first, led = joined([root, later], NONE, LED_TO)
    assert first.remedy == root.remedy and first.consequences == (summary,)
    assert led.summary == summary and [each.text for each in led.remedy] == [advice]
    _, own = joined([msgspec.structs.replace(root, severity="info"), later], NONE, LED_TO)
    assert own.remedy == later.remedy, "what may be meant takes no advice's place"


@pytest.mark.parametrize(("tensor", "cause", "follows"), [("up", "a", True), ("down", "a", False), ("up", "b", False)])
def test_inf_that_went_nowhere_is_the_root_of_nan_of_the_same_tensor(tensor: str, cause: str, follows: bool) -> None:
    first = nan(severity="warning", subject="contained", step=150, tensor="up", facts={"cause_class": "a"})
    later = nan(tensor=tensor, summary="NaN of up", facts={"cause_class": cause})
    led_to = {"first_nonfinite": frozenset(first_nonfinite.RULE.leads_to)}
    order = joined([first, later], NONE, led_to)
    assert [each.step for each in order] == ([150, 170] if follows else [170, 150])
    assert (order[0].consequences == ("NaN of up",)) == follows


def with_state(recording: Recording, amax: float, nan: int = 32, **more: Any) -> Finding:
    """`nan` of the 32 elements of both moments of AdamW are NaN, and the gradient was finite: `amax` at most."""
    state = [facts("exp_avg", nan=nan, dtype="float32"), facts("exp_avg_sq", nan=nan, dtype="float32")]
    adam = {"class": "AdamW", "parameter": "up.weight", "lr": 1e-3, "eps": 1e-8, "state": state}
    event = seen(MODEL[UP], weights=(facts("up.weight", nan=nan),), optimizer=adam)
    return found(recording, UP, event, columns={"amax": np.array([1, 1, 1, 1, 1, 1, amax])[:, None]}, **more)


def test_a_gradient_of_zero_that_is_divided_by_its_norm(recording: Recording) -> None:
    finding = with_state(recording, 0.0)
    assert finding.facts["cause_class"] == "clip"
    assert "It was 0 in all elements" in text(finding)
    assert not any("learning rate" in each.text for each in finding.remedy)


@pytest.mark.parametrize(
    ("came_back", "ranks", "is_clip"), [(0.0, 1, True), (0.1, 1, False), (0.0, 2, False)],
    ids=["nothing came back", "something did", "others may have added theirs"],
)  # fmt: skip
def test_a_gradient_of_zero_that_no_backward_accumulates(
    recording: Recording, came_back: float, ranks: int, is_clip: bool
) -> None:
    """As autograd.grad() gives it: no gradient of a parameter is recorded, and what comes back to outputs is."""
    model = [*MODEL[:3], tensor("up", "grad_output", call_index=3)]
    given = facts("up.weight", nan=32)
    sgd = {"class": "SGD", "parameter": "up.weight", "lr": 0.02, "gradient": given, "state": []}
    event = seen(model[UP], weights=(facts("up.weight", nan=32),), optimizer=sgd)
    amax = np.where((np.arange(4)[:, None] == 3) & (np.arange(STEPS) == BAD - 1), came_back, 1.0)
    if ranks > 1:
        recording.write(model, STEPS, rank=1, world_size=ranks)
    where = {"rank": 0, "world_size": ranks} if ranks > 1 else {}
    finding = found(recording, UP, event, model=model, columns={"amax": amax}, **where)
    assert (finding.facts["cause_class"] == "clip") == is_clip
    assert ("0 divided by its own norm" in text(finding)) == is_clip
    assert ("not 0" in finding.remedy[0].text) == is_clip


@pytest.mark.parametrize(("clipped", "cause"), [(False, "communication"), (True, "clip")])
def test_of_several_ranks_that_may_be_a_hook_that_compresses(recording: Recording, clipped: bool, cause: str) -> None:
    """PowerSGD without an epsilon divides a column of zeros by its norm."""
    recording.write(MODEL, STEPS, rank=1, world_size=2)
    series = {"clipped_norm": 1.0} if clipped else None
    finding = with_state(recording, 0.0, rank=0, world_size=2, series=series)
    assert finding.facts["cause_class"] == cause
    assert ("PowerSGD" in text(finding)) == (not clipped)


@pytest.mark.parametrize(("inf", "update", "is_past"), [(1.0, 0.5, True), (1.0, np.nan, True), (0.0, 0.5, False)])
def test_an_update_past_the_loss_scaler(recording: Recording, inf: float, update: float, is_past: bool) -> None:
    """The scaler found Inf, and the weights were updated all the same: the loop calls optimizer.step() itself."""
    at = np.arange(STEPS)
    series = {
        "loss_scale": 65536.0, "found_inf": np.where(at == BAD - 1, inf, 0.0),
        "sampled_update": np.where(at == BAD - 1, update, 0.01),
    }  # fmt: skip
    finding = with_state(recording, 0.1, nan=1, series=series, loss_scaled=True)
    assert (finding.facts["cause_class"] == "loss_scale") == is_past
    assert ("scaler.step(optimizer)" in finding.remedy[0].text) == is_past


def test_a_fused_optimizer_is_called_in_a_step_that_is_skipped(recording: Recording) -> None:
    """It changes nothing then; and what is in .grad is what the scaler left out."""
    at = np.arange(STEPS)
    skipped = at == BAD - 1
    series = {"loss_scale": 65536.0, "found_inf": 1.0 * skipped, "sampled_update": np.where(skipped, 0.0, 0.01)}
    given = facts("up.weight", nan=32)
    adam = {"class": "Adam", "parameter": "up.weight", "lr": 1e-3, "eps": 1e-8, "gradient": given,
            "state": [facts("exp_avg", nan=0, dtype="float32")]}  # fmt: skip
    event = seen(MODEL[UP], weights=(facts("up.weight", nan=1),), optimizer=adam)
    finding = found(recording, UP, event, series=series, loss_scaled=True)
    assert finding.facts["cause_class"] == "weight"
    assert "as the optimizer was given it" not in text(finding) and "The forward of step" in text(finding)


@pytest.mark.parametrize(("classes", "is_past"), [(("Adam",), True), (("Adam", "Adam"), False)])
def test_of_two_optimizers_one_may_be_skipped(recording: Recording, classes: tuple[str, ...], is_past: bool) -> None:
    at = np.arange(STEPS)
    series = {"loss_scale": 65536.0, "found_inf": 1.0 * (at == BAD - 1), "sampled_update": 0.01}
    known = events.event(events.Optimizers(classes), 1, 1)
    adam = {"class": "Adam", "parameter": "up.weight", "lr": 1e-3, "eps": 1e-8, "state": []}
    event = seen(MODEL[UP], weights=(facts("up.weight", nan=1),), optimizer=adam)
    finding = found(recording, UP, event, known, series=series, loss_scaled=True)
    assert (finding.facts["cause_class"] == "loss_scale") == is_past


def test_a_gradient_that_turned_bad_in_the_reduction(recording: Recording) -> None:
    recording.write(MODEL, STEPS, rank=1, world_size=2)
    finding = with_state(recording, 0.1, rank=0, world_size=2)
    assert finding.facts["cause_class"] == "communication"
    assert "reduction" in finding.summary and "reduction" in finding.remedy[0].text
    assert not any("learning rate" in each.text or "clip" in each.text for each in finding.remedy)


def test_few_bad_elements_are_of_no_clip_by_a_norm(recording: Recording) -> None:
    """A norm that is NaN makes all of a gradient NaN."""
    finding = with_state(recording, 0.1, nan=1)
    assert finding.facts["cause_class"] != "clip" or finding.facts["sureness"] != "shown"
    assert "not 0" not in finding.remedy[0].text and "1 of 32" in text(finding)
    assert "single elements" in finding.remedy[0].text and "clip_grad_norm_" not in finding.remedy[0].code
    assert "hardware" in finding.facts["candidates"] and "the norm that is clipped by" not in text(finding)


@pytest.mark.parametrize("nan", [1, 32], ids=["few", "all"])
@pytest.mark.parametrize("other", [True, False], ids=["the other rank's alike", "unknown"])
def test_a_reduction_between(recording: Recording, nan: int, other: bool) -> None:
    state = [facts("exp_avg", nan=nan, dtype="float32")]
    adam = {"class": "AdamW", "parameter": "up.weight", "lr": 1e-3, "eps": 1e-8, "state": state}
    events = [seen(MODEL[UP], weights=(facts("up.weight", nan=nan),), optimizer=adam)] if other else []
    recording.write(MODEL, STEPS, rank=1, world_size=2, events=events)
    finding = with_state(recording, 0.1, nan=nan, rank=0, world_size=2)
    assert finding.facts["cause_class"] == "communication"
    assert (finding.facts["sureness"] == "shown") == (other and nan == 1)
    assert ("hold the same number" in text(finding)) == other
    assert ("clip" in finding.facts["candidates"]) == (nan == 32)


def test_moments_that_are_bad_say_nothing_of_the_learning_rate(recording: Recording) -> None:
    """Of no gradient anything is recorded."""
    state = [facts("exp_avg", nan=32, dtype="float32")]
    adam = {"class": "AdamW", "parameter": "up.weight", "lr": 1e-3, "eps": 1e-8, "state": state}
    event = seen(MODEL[UP], weights=BAD_WEIGHT, optimizer=adam)
    finding = found(recording, UP, event, model=MODEL[:3])
    assert not any("learning rate" in each.text for each in finding.remedy)


@pytest.mark.parametrize(("nans", "cause"), [(8, "mask"), (5, "forward_arithmetic")], ids=["whole rows", "elements"])
def test_a_row_of_an_output_that_is_masked_whole(recording: Recording, nans: int, cause: str) -> None:
    """As of a policy all of whose actions are forbidden: only its loss shows it."""
    model = [tensor("policy", call_index=0, dtype="float32"), tensor("policy", "grad_output", 1, "float32")]
    infs, bad = np.zeros((2, STEPS)), np.zeros((2, STEPS))
    infs[0], infs[0, BAD], bad[1, BAD] = 6, 9, nans
    loss = np.where(np.arange(STEPS) == BAD, np.nan, 1.0)
    recording.write(model, STEPS, {"inf_count": infs, "nan_count": bad}, series={"loss": loss})
    (finding,) = recording.diagnose(first_nonfinite.RULE, loss_nonfinite.RULE).findings
    assert (finding.rule, finding.facts["origin"], finding.facts["cause_class"]) == ("first_nonfinite", "loss", cause)
    assert ("masked whole" in finding.remedy[0].text) == (cause == "mask")
    assert len(finding.consequences) == 1


def test_a_loss_that_is_finite_again(recording: Recording) -> None:
    recording.write(LAYERS, STEPS, series={"loss": np.where(np.arange(STEPS) == BAD, np.nan, 1.0)})
    (finding,) = recording.diagnose(loss_nonfinite.RULE).findings
    assert finding.severity == "warning"


def with_large(recording: Recording, peak_count: int, **more: Any) -> Finding:
    """The output of `down` is NaN, and of a weight of `up` so many elements are huge."""
    large = facts("up.weight", 4e37, dtype="float32") | {"peak_count": peak_count, "rest_amax": 0.2}
    event = seen(MODEL[2], large_weights=[large], inputs=[facts("input[0]", 3e37, dtype="float32")])
    return found(recording, 2, event, **more)


def test_one_element_of_a_weight_that_jumped(recording: Recording) -> None:
    finding = with_large(recording, 1)
    assert (finding.facts["origin"], finding.facts["where"]) == ("weight", "up.weight")
    assert finding.facts["cause_class"] == "weight" and "hardware" in finding.facts["candidates"]
    assert "It may be the hardware" in text(finding) and "up.weight" in finding.summary
    assert not any("learning rate" in each.text or " eps" in each.text for each in finding.remedy)


@pytest.mark.parametrize(("optimizer", "is_update"), [("SGD", True), ("AdamW", False)])
def test_one_element_that_its_gradient_brought_there(recording: Recording, optimizer: str, is_update: bool) -> None:
    """As of a batch norm in eval() that amplifies a channel. Adam's updates are no larger than the rate says."""
    model = [*MODEL[:3], tensor("up.weight", "grad", 3, "float32")]
    amax = np.ones((4, STEPS))
    amax[3, BAD - 1 :] = 4e38 / 20
    known = events.event(events.Optimizers((optimizer,)), 1, 2)
    large = facts("up.weight", 4e37, dtype="float32") | {"peak_count": 1, "rest_amax": 0.2}
    event = seen(MODEL[2], large_weights=[large], inputs=[facts("input[0]", 3e37, dtype="float32")])
    finding = found(recording, 2, event, known, model=model, columns={"amax": amax})
    assert (finding.facts["origin"] == "weight") == (not is_update)


def test_a_part_of_a_parameter_that_code_between_the_modules_uses(recording: Recording) -> None:
    """As of the weights of all experts, of which one was never initialised."""
    large = facts("experts", 3e38, nan=4, dtype="float32")
    event = seen(MODEL[2], large_weights=[large], inputs=[facts("input[0]", nan=8)])
    finding = found(recording, 2, event)
    assert (finding.facts["origin"], finding.facts["where"]) == ("weight", "experts")
    assert finding.facts["cause_class"] == "weight" and "Initialise all of experts" in finding.remedy[0].text
    assert "may have been so since the run began" in text(finding)


@pytest.mark.parametrize(("name", "is_near"), [("table", True), ("other.table", False)])
def test_a_buffer_as_the_memory_was(recording: Recording, name: str, is_near: bool) -> None:
    """Of a module around the first that is bad; code between them computed with it."""
    table = facts(name, 2e37, dtype="float32") | {"is_buffer": True, "peak_count": 1, "rest_amax": 0.3}
    finding = found(recording, 2, seen(MODEL[2], large_weights=[table], inputs=[facts("input[0]", nan=8)]))
    assert (finding.facts["origin"], finding.facts["where"]) == (("weight", "table") if is_near else ("between", ""))
    if is_near:
        assert finding.summary.endswith("; the buffer table held far too large values.")
        assert "magnitudes up to 2e+37" in text(finding) and "was not finite" not in text(finding)
        assert finding.remedy[0].text.startswith("Compute table anew")


@pytest.mark.parametrize(("given", "cause"), [(900.0, "data"), (1.0, "learning_rate")])
def test_outputs_that_rose_with_what_the_model_is_given(recording: Recording, given: float, cause: str) -> None:
    amax = np.ones((len(MODEL), STEPS))
    amax[:2, BAD:] = 1100.0
    event = seen(MODEL[2], model_inputs=[facts("input[0]", 3e3, dtype="float32")])
    sizes = np.where(np.arange(STEPS) < BAD, 1.0, given)
    finding = found(recording, 2, event, columns={"amax": amax}, series={"input_rms": sizes, "loss": np.ones(STEPS)})
    assert finding.facts["cause_class"] == cause
    assert any("learning rate" in each.text for each in finding.remedy) == (cause == "learning_rate")


def test_a_parameter_that_is_bad_as_a_whole_was_not_initialised_so(recording: Recording) -> None:
    """As where code between the modules adds one that the last update made NaN."""
    large = facts("places", nan=32, dtype="float32")
    finding = found(recording, 2, seen(MODEL[2], large_weights=[large], inputs=[facts("input[0]", nan=8)]))
    assert finding.facts["where"] == "places"
    assert not any("torch.empty" in each.text for each in finding.remedy)
    assert "since the run began" not in text(finding)


def test_a_parameter_that_is_a_mask_is_no_bad_one(recording: Recording) -> None:
    large = facts("mask", inf=8, dtype="float32") | {"negative_inf_count": 8}
    finding = found(recording, 2, seen(MODEL[2], large_weights=[large], inputs=[facts("input[0]", nan=8)]))
    assert finding.facts["origin"] == "between"


def test_a_weight_that_grew_as_a_whole_is_no_flipped_bit(recording: Recording) -> None:
    finding = with_large(recording, 30)
    assert finding.facts["origin"] == "forward" and "hardware" not in finding.facts["candidates"]


@pytest.mark.parametrize(("xid", "is_hardware"), [(48, True), (13, False)], ids=["memory", "an application's"])
def test_an_error_of_a_cards_memory_right_before(recording: Recording, xid: int, is_hardware: bool) -> None:
    event = Event("xid", 1, BAD - 2, "Xid", {"xid": xid, "uuid": "GPU-1"})
    finding = found(recording, UP, event, seen(MODEL[UP], inputs=[facts("input[0]")]))
    assert (finding.facts["cause_class"] == "hardware") == is_hardware
    assert ("dcgmi" in finding.remedy[0].text) == is_hardware
