"""What is no proof of a cause is not taken for one: negative elements, a class's name, old values, a little growth."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from tests.server.rules.conftest import Recording, tensor
from tests.server.rules.test_first_nonfinite_origin import (
    ACT,
    BAD,
    DOWN,
    DOWN_GRADIENT,
    MODEL,
    STEPS,
    UP,
    facts,
    found,
    origin,
    seen,
    text,
)  # fmt: skip

LOSS = np.where(np.arange(STEPS) >= BAD, np.nan, 1.0)


@pytest.mark.parametrize(
    ("given", "more", "cause"),
    [
        (facts("input[0]", negative_count=1), {}, "negative"),
        (facts("input[0]", negative_count=20), {}, ""),
        (facts("input[0]", negative_count=1), {"weights": [facts("act.slope")]}, ""),
        (facts("input[0]", zero_count=1), {}, "zero"),
        (facts("input[0]", zero_count=7), {}, ""),
    ],
    ids=["as many", "more than NaN", "with weights", "as many zeros", "more zeros"],
)
def test_elements_that_may_be_the_cause(recording: Recording, given: Any, more: dict[str, Any], cause: str) -> None:
    finding = found(recording, ACT, seen(MODEL[ACT], inputs=[given], **more))
    assert origin(finding)[:2] == ("forward", cause)
    if not cause:
        assert "are NaN there" not in text(finding) and "not finite there" not in text(finding)
        assert "detect_overflow" in finding.remedy[0].code


def test_the_input_of_a_module_with_others_in_it_proves_nothing(recording: Recording) -> None:
    model = [tensor("block.up"), tensor("block", call_index=1, module="Block"), tensor("block.up.weight", "grad", 2)]
    finding = found(recording, 1, seen(model[1], inputs=[facts("input[0]", negative_count=1)]), model=model)
    assert origin(finding)[:2] == ("forward", "")


LOWEST = facts("input[1]", float(np.finfo(np.float32).max), dtype="float32")


@pytest.mark.parametrize(("module", "is_mask"), [("Linear", True), ("Attention", False)])
def test_the_lowest_number_speaks_for_a_mask_where_values_are_taken(
    recording: Recording, module: str, is_mask: bool
) -> None:
    """An attention is given it in each step, added to its scores."""
    model = [tensor("up", dtype="float32", module=module), tensor("up.weight", "grad", 1)]
    finding = found(recording, 0, seen(model[0], inputs=[facts("input[0]", dtype="float32"), LOWEST]), model=model)
    assert (finding.facts["cause_class"] == "mask") is is_mask
    assert any("masked whole" in each.text for each in finding.remedy) is is_mask


def test_whole_rows_are_said(recording: Recording) -> None:
    """Of no attention, as far as its name shows."""
    counts = np.zeros((len(MODEL), STEPS))
    counts[ACT:, BAD] = 8
    counts[:, BAD + 1 :] = 8
    finding = found(recording, ACT, seen(MODEL[ACT]), columns={"nan_count": counts})
    assert "whole row" in text(finding).lower() and finding.facts["cause_class"] == "forward_arithmetic"


@pytest.mark.parametrize(
    ("module", "weight", "cause"),
    [("Linear", 3e4, "range"), ("Linear", 1.0, ""), ("QConv2d", 3e4, ""), ("LinearAttentionByHand", 3e4, "")],
)
def test_a_linear_module_overflows_where_its_bound_does(
    recording: Recording, module: str, weight: float, cause: str
) -> None:
    model = [*MODEL[:DOWN], tensor("down", call_index=2, module=module), *MODEL[DOWN + 1 :]]
    finding = found(recording, DOWN, seen(model[DOWN], weights=[facts("down.weight", weight)]), model=model)
    assert origin(finding)[:2] == ("forward", cause)
    assert finding.remedy


def test_a_wide_overflow_that_did_not_grow_has_advice(recording: Recording) -> None:
    model = [tensor("up", dtype="float32"), tensor("up.weight", "grad", 1, dtype="float32")]
    event = seen(model[0], inputs=[facts("input[0]", 1e30, dtype="float32")],
                 weights=[facts("up.weight", 1e20, dtype="float32")])  # fmt: skip
    finding = found(recording, 0, event, model=model)
    assert origin(finding)[:2] == ("forward", "range") and finding.remedy


@pytest.mark.parametrize(("at", "what"), [(ACT, {}), (DOWN_GRADIENT, {"series": {"loss": LOSS}})])
def test_no_sentence_says_that_it_shows_where_it_shows(recording: Recording, at: int, what: dict[str, Any]) -> None:
    finding = found(recording, at, **what)
    assert "first seen where" not in text(finding)
    (cause,) = [each for each in finding.evidence if each.startswith("Cause (")]
    assert cause.count(". ") == 1 and "float64" not in text(finding)


def test_float64_decides_on_a_range(recording: Recording) -> None:
    finding = found(recording, ACT, seen(MODEL[ACT], inputs=[facts("input[0]", 6e4)]), what="inf_count")
    assert finding.facts["cause"] == "range" and "float64" in text(finding)


@pytest.mark.parametrize("calls", [1, 48], ids=["once", "often"])
def test_a_jump_of_what_is_called_often_is_not_of_the_batch(recording: Recording, calls: int) -> None:
    """A recurrence that explodes within one step: its largest magnitude is that of all its calls."""
    model = [tensor("cell", call_index=0), tensor("", call_index=1, module="Ode"), tensor("", "grad_output", 2)]
    model = [msgspec.structs.replace(each, dtype="float32") for each in model]
    amax, counts = np.ones((3, STEPS)), np.ones((3, STEPS))
    amax[:2, BAD], counts[0] = 1e33, calls
    loss = np.where(np.arange(STEPS) >= BAD, np.inf, 1.0)
    finding = found(recording, 2, model=model, columns={"amax": amax, "call_count": counts}, series={"loss": loss})
    assert ("data" in finding.facts["candidates"]) == (calls == 1)
    assert "far larger than any before" not in finding.summary
    if calls > 1:
        assert finding.facts["cause_class"] == "forward_arithmetic"
        assert "1e+33" in finding.remedy[0].because and "cell" in finding.remedy[0].text


class TestZeroes:
    def test_a_gradient_of_zero_is_said_to_be_zero(self, recording: Recording) -> None:
        """The optimizer divides by its norm."""
        lamb = {"class": "Lamb", "parameter": "up.weight", "lr": 1e-3, "state": []}
        amax = np.ones((len(MODEL), STEPS))
        amax[6, BAD - 1] = 0.0
        event = seen(MODEL[UP], weights=[facts("up.weight", nan=32)], optimizer=lamb)
        finding = found(recording, UP, event, columns={"amax": amax})
        assert origin(finding)[:2] == ("optimizer", "zero")
        assert "Its gradient at that step was 0 in all elements" in text(finding)
        assert "Lamb" in finding.remedy[0].text and not any("learning rate" in each.text for each in finding.remedy)

    def test_of_a_tensor_that_is_not_of_each_step(self, recording: Recording) -> None:
        calls = np.ones((len(MODEL), STEPS))
        calls[ACT, BAD - 3 : BAD] = 0
        finding = found(recording, ACT, columns={"call_count": calls})
        assert f"At step {BAD - 4} it had amax 1," in text(finding) and "In the step before it" not in text(finding)


class TestLoss:
    def growing(self, recording: Recording, bits: float, last: str = "Linear", start: float = 0.0) -> Any:
        model = [*MODEL[:DOWN], tensor("down", call_index=2, module=last), *MODEL[DOWN + 1 :]]
        amax = np.ones((len(MODEL), STEPS))
        amax[:DOWN_GRADIENT] = 2.0 ** (start + bits * np.arange(STEPS))
        return found(recording, DOWN_GRADIENT, model=model, columns={"amax": amax}, series={"loss": LOSS})

    def test_a_little_growth_is_no_reason(self, recording: Recording) -> None:
        finding = self.growing(recording, 0.03)
        advice = " ".join(each.text for each in finding.remedy)
        assert "learning rate" not in advice and "logits" not in advice
        assert "targets" in advice and "log" in finding.remedy[0].text
        assert not finding.facts["of_magnitude"]

    def test_growth_to_the_limit_is_one(self, recording: Recording) -> None:
        finding = self.growing(recording, 0.4)
        assert "learning rate" in " ".join(each.text for each in finding.remedy)

    @pytest.mark.parametrize("last", ["Softmax", "Sigmoid"])
    def test_logits_where_there_is_a_softmax(self, recording: Recording, last: str) -> None:
        assert "logits" in self.growing(recording, 0.0, last).remedy[0].text
