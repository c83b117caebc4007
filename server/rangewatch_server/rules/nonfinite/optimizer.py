"""What the optimizer's settings and state show of a weight that turned NaN or Inf."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from rangewatch.wire.events import Nonfinite, OptimizerDetails, TensorDetails
from rangewatch_server.numerics.headroom import limits_of
from rangewatch_server.numerics.pyramid import SERIES_PART
from rangewatch_server.rules.loss.series import FOUND_INF, UPDATE
from rangewatch_server.rules.nonfinite.case import Case
from rangewatch_server.rules.nonfinite.tensor_phrases import NEAR_BITS, counts, headroom

_SQUARES = ("exp_avg_sq", "square_avg", "sum", "v")
"""Names of the squared gradients in the state of torch's optimizers, whose root is divided by."""


def optimizer_of(case: Case, parameter: str) -> OptimizerDetails | None:
    """The optimizer of the parameter, as the agent saw it at this step or the next; None where it did not."""
    for event, context in case.evidence.details(Nonfinite):
        if event.rank == case.bad.rank and 0 <= event.step - case.bad.step <= 1:
            optimizer = context.optimizer
            if optimizer is not None and optimizer.parameter == parameter:
                is_left = optimizer.gradient is not None and found_inf(case) and not has_updated(case)
                return msgspec.structs.replace(optimizer, gradient=None) if is_left else optimizer
    return None


def found_inf(case: Case) -> bool:
    """Whether the loss scaler found Inf or NaN in the gradients of the step before: they stay in `.grad`, and the
    optimizer is not given them."""
    evidence, step = case.evidence, case.bad.step - 1
    if step < evidence.start or not evidence.is_loss_scaled:
        return False
    found = evidence.series(FOUND_INF, step, step + 1, case.bad.rank)
    return bool(len(found) and found[0] > 0)


def has_updated(case: Case) -> bool:
    """Whether an update of the step before changed the parameter that is compared: a fused optimizer is called in a
    step that its scaler skips as well, and changes nothing."""
    row = case.evidence.run.names().series.get(UPDATE)
    if row is None:
        return False
    step, names = case.bad.step - 1, ("max", "nonfinite_count")
    block = case.evidence.run.slice(SERIES_PART, [case.bad.rank], 0, step, step + 1, names, np.array([row]))
    return any(bool(block.columns[each][0, 0] > 0) for each in names)


def optimizer_fault(case: Case, parameter: str) -> str:
    """What it did: "eps" (a division by zero), "state" (its state is not finite), "growth" (outputs or gradients grew
    before); "written": not the optimizer, whose update must have been finite; "" where none of these is shown.
    """
    optimizer = optimizer_of(case, parameter)
    if optimizer is not None and _divides_by_zero(optimizer):
        return "eps"
    if optimizer is not None and any(each.is_bad for each in made_of_gradients(optimizer)):
        return "state"
    if optimizer is not None and _is_innocent(optimizer):
        return "written"
    return "growth" if _has_grown(case) else ""


OF_GRADIENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg", "sum", "grad_avg")
"""State of torch's optimizers, and of those after them, that is made of gradients alone."""


DIVIDES_BY_NO_NORM = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Rprop", "ASGD")
"""Torch's optimizers whose update of a gradient of zeros is finite, whatever they were given before."""


def made_of_gradients(optimizer: OptimizerDetails) -> list[TensorDetails]:
    """Its state, and the gradient that it was given where that was not finite."""
    return [*optimizer.state, *([] if optimizer.gradient is None else [optimizer.gradient])]


def was_given_zeros(case: Case, parameter: str) -> bool:
    """Whether all that the optimizer keeps of the gradients of a parameter is 0: each of them was."""
    optimizer = optimizer_of(case, parameter)
    state = [] if optimizer is None else [each for each in optimizer.state if each.name in OF_GRADIENTS]
    return bool(state) and all(each.numel > 0 and each.zero_count == each.numel for each in state)


def optimizer_sentences(case: Case, parameter: str) -> Iterator[str]:
    """The evidence for that."""
    optimizer = optimizer_of(case, parameter)
    if optimizer is None:
        return
    settings = {"lr": optimizer.lr, "eps": optimizer.eps}
    reported = ", ".join(f"{name} {value:g}" for name, value in settings.items() if value is not None)
    yield f"The optimizer is {optimizer.name} with {reported}." if reported else f"The optimizer is {optimizer.name}."
    if _divides_by_zero(optimizer):
        squares = next(each for each in optimizer.state if each.name in _SQUARES)
        word = "is 0" if optimizer.eps == 0 else f"is 0 in {squares.dtype}"
        yield (
            f"eps {word}, and {squares.zero_count} of {squares.numel} elements of its {squares.name} are 0: "
            "its update divides 0 by 0 there."
        )
    if optimizer.gradient is not None:
        yield f"The gradient of this weight, as the optimizer was given it, held {counts(optimizer.gradient)}."
    bad = [each for each in optimizer.state if each.is_bad]
    if bad:
        yield f"Its {bad[0].name} for this weight held {counts(bad[0])}."
    elif optimizer.state and not _divides_by_zero(optimizer):
        so = ", and so was its update: something else wrote to the weight" if _is_innocent(optimizer) else ""
        yield f"Its state for this weight was finite{so}."


def _divides_by_zero(optimizer: OptimizerDetails) -> bool:
    """Whether eps is nothing in the dtype of the squares, and some of these are 0."""
    eps = optimizer.eps
    return eps is not None and any(
        each.name in _SQUARES and bool(each.zero_count) and eps < limits_of(each.dtype).smallest_subnormal / 2
        for each in optimizer.state
    )


MOST_OF_ADAM = 2.0**12
"""Times its rate that Adam moves an element at most: 32 by its squares, more where these have underflowed."""


def _is_innocent(optimizer: OptimizerDetails) -> bool:
    """Whether its last update was finite: it is of a class that adds no more to a weight than its state and lr show."""
    is_known = optimizer.name in ("Adam", "AdamW", "SGD") and optimizer.lr is not None
    largest = max((each.amax for each in optimizer.state), default=0.0)
    moved = max(optimizer.lr or 0.0, 1.0) * (largest if optimizer.name == "SGD" else max(largest, MOST_OF_ADAM))
    is_small = all(headroom(each.dtype, moved) > NEAR_BITS for each in optimizer.state)
    is_clean = bool(optimizer.state) and not any(each.is_bad for each in made_of_gradients(optimizer))
    return is_known and is_clean and is_small and not _divides_by_zero(optimizer)


def _has_grown(case: Case) -> bool:
    """Whether outputs or gradients were growing until then: that is what too large updates look like."""
    return case.output_growth is not None or case.gradient_growth is not None
