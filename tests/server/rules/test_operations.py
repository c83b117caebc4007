"""Which operation of a loss made NaN or Inf, where the agent has seen its graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire import events
from rangewatch.wire.events import LoadedBatch, LossGraph, SavedValue, TensorDetails
from rangewatch_server.rules import Finding
from tests.server.rules.conftest import Recording, tensor
from tests.server.rules.test_first_nonfinite_origin import (
    BAD,
    DOWN,
    DOWN_GRADIENT,
    MODEL,
    STEPS,
    facts,
    found,
    origin,
    seen,
    text,
)  # fmt: skip


def value(dtype: str = "float32", **counts: int) -> TensorDetails:
    usual = {"numel": 32, "nan_count": 0, "inf_count": 0, "zero_count": 0, "negative_count": 0}
    return TensorDetails("x", dtype, amax=1.0, **(usual | counts))


def of_loss(recording: Recording, graph: LossGraph, loss: float = float("nan"), **series: Any) -> Finding:
    losses = [1.0] * BAD + [loss] * (STEPS - BAD)
    event = events.event(graph, 1, BAD)
    return found(recording, DOWN_GRADIENT, event, series={"loss": losses, **series})


def risen() -> list[float]:
    return [1e-3] * (BAD - 4) + [0.03] * (STEPS - BAD + 4)


def test_an_exponential_is_named_though_the_rate_had_risen(recording: Recording) -> None:
    graph = LossGraph(bad=(SavedValue("Exp", "result", is_given=False, value=value("float16", inf_count=3)),))
    finding = of_loss(recording, graph, lr=risen())
    assert (*origin(finding)[:2], finding.facts["cause_class"]) == ("loss", "operation", "forward_arithmetic")
    assert "an exponential in float16 is where it began" in finding.summary
    assert "learning rate rose" in text(finding) and any("exponential" in each.text for each in finding.remedy)


def test_in_float32_a_rate_that_rose_weighs_more(recording: Recording) -> None:
    graph = LossGraph(bad=(SavedValue("Exp", "result", is_given=False, value=value(inf_count=3)),))
    assert of_loss(recording, graph, lr=risen()).facts["cause_class"] == "learning_rate"


@pytest.mark.parametrize(("bad", "cause"), [(3, "data"), (32, "forward_arithmetic")])
def test_what_the_loss_is_given_beside_outputs(recording: Recording, bad: int, cause: str) -> None:
    """All of it bad is what a deviation of 0 makes; some of it came with rows. No learning rate makes either."""
    given = SavedValue("MseLoss", "target", is_given=True, value=value(nan_count=bad))
    finding = of_loss(recording, LossGraph(bad=(given,)), lr=risen())
    assert (finding.facts["cause_class"], finding.facts["sureness"]) == (cause, "likely")
    assert "The target of mse_loss in the loss" in text(finding)
    assert not any("learning rate" in each.text for each in finding.remedy)


@pytest.mark.parametrize(
    ("loaded", "cause", "sureness", "words"),
    [
        (None, "forward_arithmetic", "possible", "As likely: the batch."),
        (LoadedBatch(3), "forward_arithmetic", "likely", "What the loader gave was finite"),
        (LoadedBatch(3, 1), "data", "likely", "in 1 of its 3 floating tensors"),
        (LoadedBatch(3, 1, is_given=True), "data", "shown", "what was not finite lies in it"),
    ],
)
def test_weights_of_rows(
    recording: Recording, loaded: LoadedBatch | None, cause: str, sureness: str, words: str
) -> None:
    """What outputs are multiplied by comes with the data, or is computed of them: the loader's batch says which."""
    given = SavedValue("Mul", "other", is_given=True, value=value(nan_count=3))
    finding = of_loss(recording, LossGraph(bad=(given,), loaded=loaded))
    assert (finding.facts["cause_class"], finding.facts["sureness"]) == (cause, sureness)
    assert words in text(finding)
    advice = finding.remedy[0].text
    assert ("leave" in advice) == (cause == "data" or loaded is None)
    assert ("division by 0" in advice) == (cause != "data")


def test_a_target_that_outputs_are_compared_with(recording: Recording) -> None:
    """Rather than what is computed of it, as an advantage of a reward."""
    given = tuple(SavedValue(op, "other", is_given=True, value=value(nan_count=3)) for op in ("Mul", "Sub"))
    finding = of_loss(recording, LossGraph(bad=given))
    assert (finding.facts["cause_class"], finding.facts["sureness"]) == ("data", "likely")
    assert "beside outputs, for a difference" in text(finding)


def test_a_target_of_a_loader_that_only_the_difference_shows(recording: Recording) -> None:
    made = SavedValue("Pow", "self", is_given=False, value=value(nan_count=3))
    finding = of_loss(recording, LossGraph(bad=(made,), loaded=LoadedBatch(2, 1)))
    assert (finding.facts["cause_class"], finding.facts["sureness"]) == ("data", "likely")


def test_a_division_by_zero(recording: Recording) -> None:
    graph = LossGraph(risky=(SavedValue("Div", "other", is_given=False, value=value(zero_count=2)),))
    finding = of_loss(recording, graph, loss=float("inf"))
    assert finding.facts["cause_class"] == "forward_arithmetic"
    assert "divisor" in finding.remedy[0].text


@pytest.mark.parametrize(
    ("loss", "is_given", "numel", "dtype", "has_mask", "cause"),
    [
        (float("nan"), True, 1, "int64", False, "mask"), (float("nan"), True, 1, "float32", False, "data"),
        (float("nan"), True, 1, "float32", True, "mask"), (float("inf"), True, 1, "int64", False, "forward_arithmetic"),
        (float("nan"), False, 1, "float32", False, "forward_arithmetic"),
        (float("nan"), True, 2, "float32", False, "forward_arithmetic"),
    ],
    ids=["0 of 0", "weights", "a mask in floats", "not 0 / 0", "a result of the model", "of rows"],
)  # fmt: skip
def test_a_mean_over_nothing(
    recording: Recording, loss: float, is_given: bool, numel: int, dtype: str, has_mask: bool, cause: str
) -> None:
    divisor = SavedValue("Div", "other", is_given=is_given, value=value(numel=numel, zero_count=1, dtype=dtype))
    finding = of_loss(recording, LossGraph(risky=(divisor,)), loss=loss, **({"token_share": 0.5} if has_mask else {}))
    assert finding.facts["cause_class"] == cause
    assert ("left out" in finding.remedy[0].text) == (cause in ("mask", "data"))
    assert ("nothing of this batch counted." in finding.summary) == (cause in ("mask", "data"))


@pytest.mark.parametrize(
    ("ops", "cause"),
    [
        (("Softmax", "Div", "Sum"), "forward_arithmetic"), (("Sqrt", "Div"), "backward_arithmetic"),
        (("MyBackward", "Div"), "backward_arithmetic"), (("Mul", "Add"), "backward_arithmetic"),
    ],
)  # fmt: skip
def test_a_finite_loss_whose_gradient_is_not(recording: Recording, ops: tuple[str, ...], cause: str) -> None:
    """Where no other operation can have made it a division was not finite in the forward, and was dropped."""
    finding = of_loss(recording, LossGraph(gradient_of="down", ops=ops), loss=1.0)
    assert (finding.facts["origin"], finding.facts["cause_class"]) == ("backward", cause)


@pytest.mark.parametrize(("loss", "cause"), [(-5e4, "backward_arithmetic"), (5e4, "data")])
def test_a_loss_that_fell_below_0_has_not_blown_up(recording: Recording, loss: float, cause: str) -> None:
    """As that of a density's logarithm does. One that jumps above it of the same outputs is of its targets."""
    finding = of_loss(recording, LossGraph(gradient_of="down", ops=("Sqrt",)), loss=loss)
    assert finding.facts["cause_class"] == cause


def test_a_softmax_that_is_not_finite_speaks_for_a_mask(recording: Recording) -> None:
    graph = LossGraph(bad=(SavedValue("LogSoftmax", "result", is_given=False, value=value(nan_count=8)),))
    assert of_loss(recording, graph).facts["cause_class"] == "mask"


def between(recording: Recording, op: str, amax: float = 3.0) -> Finding:
    """The last module is given NaN that no module put out, and the graph shows `op`; outputs are so large at most."""
    made = SavedValue(op, "result", is_given=False, value=value("float16", nan_count=8))
    given = seen(MODEL[DOWN], inputs=[facts("input[0]", nan=8)], model_inputs=[facts("input[0]")])
    columns = {"amax": np.full((len(MODEL), STEPS), amax)}
    return found(recording, DOWN, given, events.event(LossGraph(bad=(made,)), 1, BAD), columns=columns)


def test_a_softmax_between_modules_is_a_row_that_is_masked_whole(recording: Recording) -> None:
    finding = between(recording, "Softmax")
    assert (origin(finding)[0], finding.facts["cause_class"], finding.facts["sureness"]) == ("between", "mask", "shown")
    assert "The first operation that was not finite is softmax" in text(finding)
    assert "Let no row be masked whole" in finding.remedy[0].text


@pytest.mark.parametrize(("count", "cause"), [(1, "mask"), (8, "forward_arithmetic")])
def test_a_softmax_of_what_held_nan_already_made_none(recording: Recording, count: int, cause: str) -> None:
    """As in the loss, behind a module whose own code made it: as many elements, and NaN in all of their rows."""
    made = SavedValue("LogSoftmax", "result", is_given=False, value=value("float16", nan_count=count))
    model = [tensor(each.fqn, each.kind, each.call_index, module="Attention") for each in MODEL]
    given = seen(model[DOWN], inputs=[facts("input[0]")], model_inputs=[facts("input[0]")])
    columns, graph = {"amax": np.full((len(MODEL), STEPS), 3.0)}, LossGraph(bad=(made,))
    finding = found(recording, DOWN, given, events.event(graph, 1, BAD), model=model, columns=columns)
    assert (origin(finding)[:2], finding.facts["cause_class"]) == (("forward", ""), cause)


def test_but_of_scores_that_may_be_inf_themselves_that_is_not_known(recording: Recording) -> None:
    """400 * 400 is beyond float16's limit, and the softmax of Inf is NaN, too."""
    assert between(recording, "Softmax", 400.0).facts["cause_class"] == "forward_arithmetic"


def test_another_operation_between_modules_is_named(recording: Recording) -> None:
    finding = between(recording, "Div")
    assert (origin(finding)[0], finding.facts["cause_class"]) == ("between", "forward_arithmetic")
    assert "a division (Div)" in text(finding) and "divisor" in finding.remedy[0].text


def test_an_output_beyond_its_range_is_not_mended_in_the_loss(recording: Recording) -> None:
    """The loss takes the standard deviation of what is Inf already."""
    made = SavedValue("Std", "result", is_given=False, value=value(nan_count=1))
    given = seen(MODEL[DOWN], inputs=[facts("input[0]", amax=6.0e4, dtype="float16")], model_inputs=[facts("input[0]")])
    columns = {"amax": np.full((len(MODEL), STEPS), 6.0e4)}
    graph = events.event(LossGraph(bad=(made,)), 1, BAD)
    finding = found(recording, DOWN, given, graph, columns=columns, what="inf_count")
    assert origin(finding)[:2] == ("forward", "range")
    assert "in float32" in finding.remedy[0].text and not any("deviation" in each.text for each in finding.remedy)
