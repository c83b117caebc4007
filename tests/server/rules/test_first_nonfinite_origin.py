"""What made the first NaN or Inf: each kind of origin told apart, by what was recorded and no more."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from rangewatch.wire import events as wire_events
from rangewatch.wire.records import Event, TensorEntry
from rangewatch_server.rules import Finding
from rangewatch_server.rules.nonfinite.first_nonfinite import RULE
from tests.server.rules.conftest import Recording, tensor
from tests.server.rules.test_axis_replicas import mesh
from tests.server.rules.test_first_nonfinite import bad_at

MODEL = [
    tensor("up", call_index=0, module="Linear"),
    tensor("act", call_index=1, module="ReLU"),
    tensor("down", call_index=2, module="Linear"),
    tensor("down", "grad_output", call_index=3),
    tensor("down.weight", "grad", call_index=4),
    tensor("act", "grad_output", call_index=5),
    tensor("up.weight", "grad", call_index=6),
]
UP, ACT, DOWN, DOWN_GRADIENT, DOWN_WEIGHT, ACT_GRADIENT, UP_WEIGHT = range(7)
STEPS, BAD = 40, 30


def facts(name: str, amax: float = 1.0, nan: int = 0, inf: int = 0, dtype: str = "float16", **more: Any) -> Any:
    counts = {"nan_count": nan, "inf_count": inf, "zero_count": 0, "negative_count": 0}
    return {"name": name, "dtype": dtype, "shape": [4, 8], "numel": 32, "amax": amax} | counts | more


def seen(entry: TensorEntry, step: int = BAD, **data: Any) -> Event:
    """What the agent tells of the surroundings of its first bad output."""
    mine = {"fqn": entry.fqn, "kind": entry.kind, "index": entry.index}
    usual = {"inputs": [facts("input[0]")], "model_inputs": [facts("input[0]")], "weights": []}
    return Event("nonfinite", 1, step, "", mine | usual | data)


def found(
    recording: Recording,
    at: int,
    *events: Event,
    model: list[TensorEntry] = MODEL,
    what: str = "nan_count",
    **more: Any,
) -> Finding:
    """The finding when tensor `at` is bad from step `BAD` on, and all after it at once."""
    columns = more.pop("columns", {})
    counts = bad_at(STEPS, *((each, BAD) for each in range(at, len(model))), of=len(model))
    counts[:, BAD + 1 :] = 1
    recording.write(model, STEPS, {what: counts} | columns, events=events, **more)
    (only,) = recording.diagnose(RULE).findings
    return only


def test_a_loss_that_jumped_alone_is_likely_of_its_targets(recording: Recording) -> None:
    """Nothing shows them: a division by an output next to 0 makes such a loss, too."""
    loss = np.where(np.arange(STEPS) == BAD, 1e9, 2.0)
    finding = found(recording, DOWN_GRADIENT, what="inf_count", series={"loss": loss})
    assert finding.facts["cause_class"] == "data" and "Cause (likely): the batch." in text(finding)
    assert "may be that large" in text(finding) and "a division by an output" in text(finding)


def origin(finding: Finding) -> tuple[str, str, str]:
    return finding.facts["origin"], finding.facts["cause"], finding.facts["where"]


def text(finding: Finding) -> str:
    return " ".join(finding.evidence)


class TestData:
    def test_a_bad_batch(self, recording: Recording) -> None:
        batch = seen(MODEL[UP], inputs=[facts("input[0]", nan=3)], model_inputs=[facts("x", nan=3)])
        finding = found(recording, UP, batch)
        assert origin(finding) == ("data", "", "")
        assert "The model's own x held 3 NaN of 32 elements already" in text(finding)
        assert "model.register_forward_pre_hook(check" in finding.remedy[0].code

    @pytest.mark.parametrize(
        ("amax", "other", "bad", "axis", "known"),
        [
            (8.0128e4, "inp", 0.0, "", ("sent", "range", "0")),
            (3.0, "inp", 0.0, "pp", ("sent", "", "0")),
            (3.0, "inp", 0.0, "dp", ("data", "", "")),  # ranks may train models of their own
            (3.0, "down", 0.0, "pp", ("sent", "", "0")),  # both stages have a module of that name
            (8.0128e4, "up", 0.0, "pp", ("data", "", "")),  # each rank has the whole model, and a batch of its own
            (8.0128e4, "inp", 1.0, "pp", ("data", "", "")),  # it was so where it was made
        ],
    )
    def test_what_another_stage_has_sent(
        self, recording: Recording, amax: float, other: str, bad: float, axis: str, known: tuple[str, str, str]
    ) -> None:
        sender = [tensor(other, call_index=0), tensor(f"{other}.ff", call_index=1)]
        if other == "down":
            sender = [tensor("inp", call_index=0), tensor("down", call_index=2)]
        columns = {"amax": np.where(np.arange(STEPS) == BAD, amax, 1.0), "nan_count": bad * (np.arange(STEPS) == BAD)}
        places = [[wire_events.event(mesh({axis: 2}, rank), 1, 0)] if axis else [] for rank in range(2)]
        recording.write(sender, STEPS, columns, world_size=2, events=places[0])
        given = facts("input[0]", inf=3, dtype="float32")
        model = MODEL if other != "up" else [tensor("up", call_index=0), tensor("up.ff", call_index=1)]
        event = seen(model[UP], inputs=[given], model_inputs=[given])
        counts = bad_at(STEPS, *((each, BAD) for each in range(len(model))), of=len(model))
        recording.write(model, STEPS, {"nan_count": counts}, events=[*places[1], event], rank=1, world_size=2)
        (finding, *_) = [each for each in recording.diagnose(RULE).findings if each.rank == 1 or bad]
        if bad:
            assert finding.rank == 0 and origin(finding)[0] != "sent"
            return
        assert origin(finding) == known
        is_sent = known[0] == "sent"
        assert finding.facts["cause_class"] == ("communication" if is_sent else "data")
        is_over = known[1] == "range"
        assert ("65,504" in text(finding), "bfloat16" in finding.remedy[0].text) == (is_over, is_over)
        assert finding.facts["sureness"] == "likely", "what the loader gave is not known"
        if is_sent:
            assert "came with what another rank had sent" in finding.summary

    def test_a_mask_is_none(self, recording: Recording) -> None:
        mask = facts("mask", inf=4, negative_inf_count=4)
        finding = found(recording, UP, seen(MODEL[UP], model_inputs=[facts("x"), mask]))
        assert origin(finding)[0] == "forward"

    def test_an_input_row_of_the_whole_model(self, recording: Recording) -> None:
        model = [tensor("", "input", 0), tensor("up", call_index=1), tensor("up.weight", "grad", 2)]
        assert origin(found(recording, 0, model=model)) == ("data", "", "")


class TestWeight:
    BAD_WEIGHT = (facts("up.weight", nan=1),)

    def test_at_the_first_step(self, recording: Recording) -> None:
        counts = np.ones((len(MODEL), 5))
        event = seen(MODEL[UP], 0, weights=self.BAD_WEIGHT)
        recording.write(MODEL, 5, {"nan_count": counts}, events=[event])
        (finding,) = recording.diagnose(RULE).findings
        assert origin(finding) == ("weight", "", "up.weight")
        assert "it was loaded, or initialised, so" in text(finding)
        assert finding.summary.endswith("is the first to hold NaN; its weight up.weight held it already.")

    def test_after_a_finite_gradient(self, recording: Recording) -> None:
        finding = found(recording, UP, seen(MODEL[UP], weights=self.BAD_WEIGHT))
        assert origin(finding) == ("weight", "", "up.weight")
        assert f"All that was recorded of step {BAD - 1} on this rank was finite" in text(finding)
        assert "Its gradient at that step was finite, amax 1," in text(finding)

    def test_whose_gradient_is_not_recorded(self, recording: Recording) -> None:
        model = MODEL[:3]
        finding = found(recording, UP, seen(MODEL[UP], weights=self.BAD_WEIGHT), model=model)
        assert "Its gradient is not recorded (kinds=grad would)" in text(finding)

    @pytest.mark.parametrize(
        ("eps", "state", "expected"),
        [
            (0.0, [facts("exp_avg_sq", 1e-4, zero_count=5)], ("optimizer", "eps")),
            (1e-8, [facts("exp_avg_sq", 1e-4, zero_count=5)], ("optimizer", "eps")),  # 1e-8 is 0 in float16
            (1e-8, [facts("exp_avg_sq", 1e-4, dtype="float32", zero_count=5)], ("weight", "written")),
            (1e-8, [facts("exp_avg_sq", 1e-4, inf=2, dtype="float32")], ("optimizer", "state")),
            (1e-8, [], ("weight", "")),
        ],
    )
    def test_what_its_optimizer_tells(
        self, recording: Recording, eps: float, state: list[Any], expected: tuple[str, str]
    ) -> None:
        adam = {"class": "Adam", "parameter": "up.weight", "lr": 1e-3, "eps": eps, "state": state}
        finding = found(recording, UP, seen(MODEL[UP], weights=self.BAD_WEIGHT, optimizer=adam))
        assert (finding.facts["origin"], finding.facts["cause"]) == expected
        assert f"The optimizer is Adam with lr 0.001, eps {eps:g}." in text(finding)

    @pytest.mark.parametrize(
        ("lr", "name", "is_written"), [(1.0, "Adam", True), (1e36, "Adam", False), (1e30, "SGD", False)]
    )
    def test_at_a_large_rate(self, recording: Recording, lr: float, name: str, is_written: bool) -> None:
        """Adam moves an element by a few thousand times its rate at most."""
        state = [facts("exp_avg", 1e7, dtype="float32"), facts("exp_avg_sq", 1e-4, dtype="float32")]
        known = {"class": name, "parameter": "up.weight", "lr": lr, "eps": 1e-8, "state": state}
        finding = found(recording, UP, seen(MODEL[UP], weights=self.BAD_WEIGHT, optimizer=known))
        assert (finding.facts["cause"] == "written") == is_written
        assert ("the optimizer's update did it" not in text(finding)) == is_written
        assert ("Look at what writes to up.weight" in finding.remedy[0].text) == is_written

    @pytest.mark.parametrize(("size", "cause"), [(1e5, "weight"), (1.0, "data")])
    def test_of_a_model_whose_inputs_are_large(self, recording: Recording, size: float, cause: str) -> None:
        """A bounded layer before it hides their size: what was given before shows it."""
        event = seen(MODEL[UP], weights=self.BAD_WEIGHT, model_inputs=[facts("input[0]", 1.03e5, dtype="float32")])
        finding = found(recording, UP, event, series={"input_rms": size})
        assert finding.facts["cause_class"] == cause

    @pytest.mark.parametrize(("zeros", "expected"), [(12, ("optimizer", "zero")), (11, ("weight", ""))])
    def test_whose_gradients_were_all_zero(self, recording: Recording, zeros: int, expected: tuple[str, str]) -> None:
        """As behind a zero-initialised layer in the step after it was thawed: of its gradient nothing is recorded."""
        weights = [facts("up.weight", 0.0, nan=12, numel=12)]
        momentum = facts("momentum_buffer", 0.0, dtype="float32", numel=12, zero_count=zeros)
        muon = {"class": "Muon", "parameter": "up.weight", "lr": 1e-2, "state": [momentum]}
        finding = found(recording, UP, seen(MODEL[UP], weights=weights, optimizer=muon), model=MODEL[:3])
        assert (finding.facts["origin"], finding.facts["cause"]) == expected

    @pytest.mark.parametrize(("name", "cause"), [("SGD", "clip"), ("Muon", "optimizer")])
    def test_all_of_which_is_nan_though_its_gradient_was_zero(
        self, recording: Recording, name: str, cause: str
    ) -> None:
        """An update of torch's own SGD makes no NaN of that; one that divides by a norm does."""
        amax = np.ones((len(MODEL), STEPS))
        amax[[each.kind == "grad" for each in MODEL], BAD - 1] = 0.0
        weights = [facts("up.weight", 0.0, nan=12, numel=12)]
        known = {"class": name, "parameter": "up.weight", "lr": 1e-2, "state": []}
        event = seen(MODEL[UP], weights=weights, optimizer=known)
        finding = found(recording, UP, event, columns={"amax": amax})
        assert origin(finding)[:2] == ("optimizer", "zero")
        assert finding.facts["cause_class"] == cause

    @pytest.mark.parametrize(("name", "sureness"), [("SGD", "shown"), ("LARS", "likely")])
    def test_whose_gradient_was_bad_when_the_optimizer_was_given_it(
        self, recording: Recording, name: str, sureness: str
    ) -> None:
        gradient = facts("grad", 0.0, nan=12, numel=12)
        known = {"class": name, "parameter": "up.weight", "lr": 1e-2, "state": [], "gradient": gradient}
        event = seen(MODEL[UP], weights=[facts("up.weight", 0.0, nan=12, numel=12)], optimizer=known)
        finding = found(recording, UP, event)
        assert (finding.facts["cause"], finding.facts["cause_class"]) == ("state", "clip")
        assert f"Cause ({sureness}): what stands between backward and optimizer.step()" in text(finding)
        assert "as the optimizer was given it, held 12 NaN of 12 elements" in text(finding)
        assert "as the backward made it, was finite" in text(finding)

    def test_of_an_optimizer_under_which_everything_grew(self, recording: Recording) -> None:
        sgd = {"class": "SGD", "parameter": "up.weight", "lr": 9.0, "state": []}
        amax = 2.0 ** np.arange(STEPS)
        event = seen(MODEL[UP], weights=self.BAD_WEIGHT, optimizer=sgd)
        finding = found(recording, UP, event, columns={"amax": amax})
        assert origin(finding)[:2] == ("optimizer", "growth")
        assert "learning rate" in finding.remedy[0].text

    def test_a_row_of_its_own(self, recording: Recording) -> None:
        model = [tensor("up.weight", "weight", 0), tensor("up", call_index=1), tensor("up.weight", "grad", 2)]
        assert origin(found(recording, 0, model=model)) == ("weight", "", "up.weight")

    def test_an_update(self, recording: Recording) -> None:
        model = [*MODEL, tensor("up.weight", "reduced_grad", 7), tensor("up.weight", "update", 8)]
        finding = found(recording, 8, model=model)
        assert origin(finding) == ("optimizer", "update", "up.weight")


class TestForward:
    def test_an_overflow_as_the_issue_has_it(self, recording: Recording) -> None:
        amax = np.ones((len(MODEL), STEPS))
        amax[UP, : BAD + 1] = 6.27e4 / 2.0 ** (0.4 * np.arange(BAD, -1, -1.0).clip(max=9))
        event = seen(MODEL[ACT], inputs=[facts("input[0]", 6.27e4)])
        finding = found(recording, ACT, event, what="inf_count", columns={"amax": amax})
        assert origin(finding) == ("forward", "range", "act")
        assert (
            "Its input[0] was finite, amax 6.27e+04, 0.06 bits below float16's limit, growing 0.4 bits a step "
            "for 8 steps; up made it large."
        ) in finding.evidence  # until the step before
        assert finding.remedy[0].text.startswith("Run act in float32")
        assert "model.get_submodule('act')" in finding.remedy[0].code
        assert "bfloat16" in finding.remedy[1].text

    def test_a_batch_that_is_too_large(self, recording: Recording) -> None:
        large = facts("input[0]", 9e4, dtype="float32")
        event = seen(MODEL[UP], inputs=[large], model_inputs=[large])
        finding = found(recording, UP, event, what="inf_count", columns={"amax": 2.0 ** (0.4 * np.arange(STEPS))})
        assert "it is the model's own input." in text(finding)
        assert "The output is float16: that amax is 0.46 bits above float16's limit." in finding.evidence
        assert [each.text.partition(" ")[0] for each in finding.remedy] == ["Run", "Train", "Look"]

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_a_wide_dtype_needs_no_wider_one(self, recording: Recording, dtype: str) -> None:
        model = [tensor("up", dtype=dtype), tensor("up.weight", "grad", 1, dtype=dtype)]
        amax = 2.0 ** (100.0 + 0.9 * np.arange(STEPS))
        event = seen(model[0], inputs=[facts("input[0]", dtype=dtype)])
        finding = found(recording, 0, event, model=model, what="inf_count", columns={"amax": amax})
        assert origin(finding)[:2] == ("forward", "range")
        assert [each.text.partition(" ")[0] for each in finding.remedy] == ["Lower", "Clip"]
        assert "growing 0.9 bits a step for 29 steps" in text(finding)

    def test_finite_weights_and_inputs_of_a_linear_module_can_only_overflow(self, recording: Recording) -> None:
        finding = found(recording, DOWN, seen(MODEL[DOWN], weights=[facts("down.weight", 3e4)]), what="inf_count")
        assert origin(finding)[:2] == ("forward", "range")
        assert "Its weights were finite, the largest magnitude 3e+04 in down.weight." in text(finding)

    @pytest.mark.parametrize(
        ("given", "what", "cause", "code"),
        [
            (facts("input[0]", zero_count=1), "inf_count", "zero", "masked_fill(each == 0, tiny)"),
            (facts("input[0]", negative_count=1), "nan_count", "negative", "clamp(min=tiny)"),
            (facts("input[0]"), "nan_count", "", "detect_overflow"),
        ],
    )
    def test_a_function_that_is_not_finite_there(
        self, recording: Recording, given: Any, what: str, cause: str, code: str
    ) -> None:
        finding = found(recording, ACT, seen(MODEL[ACT], inputs=[given]), what=what)
        assert origin(finding) == ("forward", cause, "act")
        assert code in finding.remedy[0].code

    def test_a_row_that_is_masked_whole(self, recording: Recording) -> None:
        model = [tensor("q"), tensor("softmax", call_index=1, module="Softmax"), tensor("q.weight", "grad", 2)]
        masked = facts("input[0]", inf=9, negative_inf_count=9, masked_rows=1)
        finding = found(recording, 1, seen(model[1], inputs=[masked]), model=model)
        assert origin(finding) == ("forward", "masked", "softmax")
        assert "Rows of its input[0] that are -Inf and nothing else: 1." in text(finding)
        assert "masked_fill" in finding.remedy[0].code

    @pytest.mark.parametrize(("shape", "cause"), [((2, 4, 4), "mask"), ((8, 4), "forward_arithmetic")])
    def test_rows_behind_three_layers(self, recording: Recording, shape: Any, cause: str) -> None:
        """Queries, keys and values; or layers of as many units in a row, between which a row is divided by its norm."""
        model = [TensorEntry(each, "output", 0, "float16", shape, at, "Linear") for at, each in enumerate("abcd")]
        model.append(tensor("a.weight", "grad", 4))
        rows = {"nan_count": 4 * bad_at(STEPS, *((3, at) for at in range(BAD, STEPS)), of=5)}
        finding = found(recording, 3, seen(model[3], inputs=[facts("input[0]", nan=4)]), model=model, columns=rows)
        assert finding.facts["cause_class"] == cause

    def test_a_norm_s_eps(self, recording: Recording) -> None:
        model = [tensor("norm", module="LayerNorm"), tensor("norm.weight", "grad", 1)]
        finding = found(recording, 0, seen(model[0], eps=1e-12), model=model)
        assert any("'norm').eps" in each.code and "1e-12" in each.because for each in finding.remedy)

    def test_code_between_the_modules(self, recording: Recording) -> None:
        finding = found(recording, DOWN, seen(MODEL[DOWN], inputs=[facts("input[0]", nan=2)]))
        assert origin(finding) == ("between", "", "")
        assert "The last finite output before it in call order is act's, amax 1," in text(finding)
        assert "detect_overflow" in finding.remedy[0].code

    def test_a_module_that_holds_others(self, recording: Recording) -> None:
        model = [tensor("block.up"), tensor("block", call_index=1), tensor("block.up.weight", "grad", 2)]
        finding = found(recording, 1, seen(model[1]), model=model)
        assert "All modules inside it gave finite outputs, block.up the last" in text(finding)

    def test_inputs_and_weights_by_their_rows(self, recording: Recording) -> None:
        model = [tensor("up.weight", "weight", 0), tensor("up", "input", 1), tensor("up", call_index=2)]
        amax = np.ones((3, STEPS))
        amax[1] = 6e4
        finding = found(recording, 2, model=model, what="inf_count", columns={"amax": amax})
        assert origin(finding) == ("forward", "range", "up")
        assert "Its input[0] was finite, amax 6e+04" in text(finding)
        assert "largest magnitude 1 in up.weight" in text(finding)

    def test_what_is_not_recorded_is_not_known(self, recording: Recording) -> None:
        finding = found(recording, ACT)
        assert origin(finding)[0] == "forward"
        assert "Its inputs are not recorded (kinds=frames would)." in finding.evidence
        assert "Its weights at this step are not recorded (kinds=frames would)." in finding.evidence
        assert "The output before it in call order, of up, was finite, amax 1," in text(finding)

    @pytest.mark.parametrize("is_finite", [0.0, 1.0])
    def test_weights_that_were_finite_some_steps_later(self, recording: Recording, is_finite: float) -> None:
        """Looked at when an accelerator had told of it: a scaler had skipped the step, so they are what they were."""
        series = np.where(np.arange(STEPS) == BAD + 3, is_finite, np.nan)
        finding = found(recording, UP, series={"weights_finite": series})
        sentence = f"All weights were finite when step {BAD + 3} began, and so they had been: none of them made it."
        assert (sentence in finding.evidence) == bool(is_finite)

    @pytest.mark.parametrize(
        "event",
        [
            seen(MODEL[ACT], BAD - 1, inputs=[facts("input[0]", nan=1)]),
            seen(MODEL[DOWN], inputs=[facts("input[0]", nan=1)]),
            Event("nonfinite", 1, BAD, "", {"fqn": "act", "kind": "output", "index": 0, "inputs": [{"name": 7}]}),
            Event("nonfinite", 1, BAD, "", {"inputs": "everything"}),
        ],
    )
    def test_what_was_told_of_something_else_or_cannot_be_read(self, recording: Recording, event: Event) -> None:
        assert "Its inputs are not recorded (kinds=frames would)." in found(recording, ACT, event).evidence


class TestBackward:
    def test_a_loss_that_is_not_finite(self, recording: Recording) -> None:
        loss = np.where(np.arange(STEPS) >= BAD, np.nan, 1.0)
        finding = found(recording, DOWN_GRADIENT, series={"loss": loss})
        assert origin(finding) == ("loss", "", "")
        assert "every output that is recorded was finite" in text(finding)

    def test_out_of_the_loss_itself(self, recording: Recording) -> None:
        finding = found(recording, DOWN_GRADIENT, series={"loss": np.ones(STEPS)})
        assert origin(finding) == ("backward", "loss", "")
        assert "The loss was finite, 1." in finding.evidence

    def test_a_module_s_own_backward(self, recording: Recording) -> None:
        finding = found(recording, ACT_GRADIENT)
        assert origin(finding) == ("backward", "", "down")
        assert "of the output of down, was finite, amax 1," in text(finding)
        assert "So it was made in the backward of down, or of code between that and act." in finding.evidence

    def test_a_parameter_s_own_gradient(self, recording: Recording) -> None:
        finding = found(recording, DOWN_WEIGHT)
        assert origin(finding) == ("backward", "", "down")
        assert "its own backward made it" in text(finding)

    def test_gradients_that_grew(self, recording: Recording) -> None:
        amax = np.ones((len(MODEL), STEPS))
        amax[DOWN_WEIGHT] = 2.0 ** np.arange(STEPS)
        finding = found(recording, ACT_GRADIENT, columns={"amax": amax})
        assert [each.text.partition(" ")[0] for each in finding.remedy[:2]] == ["Lower", "Clip"]

    def test_the_reduction(self, recording: Recording) -> None:
        model = [*MODEL, tensor("up.weight", "reduced_grad", 7)]
        finding = found(recording, 7, model=model)
        assert origin(finding) == ("reduction", "", "up.weight")
        assert "As it accumulated on this rank the gradient was finite, amax 1," in text(finding)


class TestInfThatGoesNowhere:
    """It began in mid-run, and nothing took it over."""

    def finding(self, recording: Recording, amax: float, **data: Any) -> Finding:
        model = [MODEL[UP], tensor("power", call_index=1, module="Power"), MODEL[DOWN], MODEL[DOWN_GRADIENT]]
        counts = np.zeros((len(model), STEPS))
        counts[1, BAD:] = 3
        known = seen(model[1], inputs=[facts("input[0]", amax)], **data)
        recording.write(model, STEPS, {"inf_count": counts}, series={"loss": np.ones(STEPS)}, events=[known])
        (only,) = recording.diagnose(RULE).findings
        return only

    @pytest.mark.parametrize("sign", [{}, {"inf_count": 3, "negative_inf_count": 0}])
    def test_whose_square_is_beyond_the_limit_is_an_overflow(self, recording: Recording, sign: Any) -> None:
        only = self.finding(recording, 656.0, **sign)
        assert (only.severity, only.facts["cause_class"]) == ("warning", "forward_arithmetic")
        assert "float32" in only.remedy[0].text

    def test_of_small_values_and_positive_is_no_mask(self, recording: Recording) -> None:
        only = self.finding(recording, 2.0, inf_count=3, negative_inf_count=1)
        assert only.facts["cause_class"] == "forward_arithmetic"
        assert "Some of it was +Inf." in only.evidence

    def test_that_is_negative_is_a_mask(self, recording: Recording) -> None:
        only = self.finding(recording, 656.0, inf_count=3, negative_inf_count=3)
        assert only.facts["cause_class"] == "mask"
        assert "All of it was -Inf." in only.evidence

    def test_of_a_sign_that_nobody_counted_is_said_to_be_so(self, recording: Recording) -> None:
        only = self.finding(recording, 2.0)
        assert only.facts["cause_class"] == "mask"
        assert any("sign is not known" in each for each in only.evidence)


@pytest.mark.parametrize(
    ("loaded", "cause", "words"),
    [
        (None, "data", "before anything is computed of it"),
        ({"count": 2, "bad_count": 0, "is_given": False}, "forward_arithmetic", "what the loader gave was finite"),
        ({"count": 2, "bad_count": 1, "is_given": True}, "data", "as the loader gave it"),
    ],
)
def test_what_the_loader_gave_says_where_an_input_turned_bad(
    recording: Recording, loaded: dict[str, Any] | None, cause: str, words: str
) -> None:
    given = [facts("input[0]", nan=3)]
    more = {} if loaded is None else {"loaded": loaded}
    finding = found(recording, UP, seen(MODEL[UP], inputs=given, model_inputs=given, **more))
    assert finding.facts["cause_class"] == cause and words in text(finding)
    assert ("sample" in finding.remedy[0].text) == (cause == "data")


@pytest.mark.parametrize(("made", "is_batch"), [(6e4, False), (1.0, True)], ids=["by another part", "by nobody"])
def test_what_a_part_is_given_may_be_what_another_made(recording: Recording, made: float, is_batch: bool) -> None:
    """A part that is called by itself, as a slice of a Sequential is: the batch may not be said to be as large."""
    given = [facts("input[0]", amax=6e4)]
    amax = np.ones((len(MODEL), STEPS))
    amax[:DOWN, BAD] = made
    event = seen(MODEL[DOWN], inputs=given, model_inputs=given, entered="down")
    finding = found(recording, DOWN, event, what="inf_count", columns={"amax": amax})
    assert (finding.facts["cause_class"] == "data") == is_batch


@pytest.mark.parametrize(
    ("weight", "given", "is_weight"), [(3.99e4, 1.0, True), (40.0, 1.0, False), (3e2, 1e-2, False)]
)
def test_a_weight_that_was_not_so_large_in_the_step_before(
    recording: Recording, weight: float, given: float, is_weight: bool
) -> None:
    """The product with one input alone is far above all that the module had given."""
    weights, inputs = [facts("up.weight", amax=weight)], [facts("input[0]", amax=given)]
    finding = found(recording, UP, seen(MODEL[UP], weights=weights, inputs=inputs))
    assert (finding.facts["cause_class"] == "weight") == is_weight
    assert ("See what wrote to the weights" in finding.remedy[0].text) == is_weight


@pytest.mark.parametrize(
    ("what", "dtype", "is_said"),
    [("inf_count", "float16", True), ("nan_count", "float16", False), ("inf_count", "float32", False)],
)  # fmt: skip
def test_in_float16_code_of_a_module_may_overflow_in_a_product(
    recording: Recording, what: str, dtype: str, is_said: bool
) -> None:
    model = [msgspec.structs.replace(each, dtype=dtype, module="Scores") for each in MODEL]
    given = [facts("input[0]", dtype=dtype)]
    finding = found(recording, UP, seen(model[UP], inputs=given, model_inputs=given), model=model, what=what)
    assert ("a dot product" in " ".join(each.text for each in finding.remedy)) == is_said
