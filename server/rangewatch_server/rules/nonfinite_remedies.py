"""What to try against a first NaN or Inf: for each origin its own, with code that names the module."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rangewatch_server.rules import loss_scale_remedies
from rangewatch_server.rules.loss_scale_causes import device_of
from rangewatch_server.rules.nonfinite_case import Case
from rangewatch_server.rules.nonfinite_code import (
    BAD_PARAMETERS,
    CLIP,
    CLIP_FINITE,
    FIND_BACKWARD,
    LOSS,
    OPTIMIZER_EPS,
    REDUCE,
    WARM_UP,
    away_inside,
    check_batch,
    check_targets,
)  # fmt: skip
from rangewatch_server.rules.nonfinite_forward_remedies import (
    NARROW,
    between_remedies,
    clip,
    forward_remedies,
    growth_remedies,
)  # fmt: skip
from rangewatch_server.rules.nonfinite_optimizer import optimizer_of
from rangewatch_server.rules.nonfinite_origin import Origin
from rangewatch_server.rules.rule import Remedy


def remedies(case: Case, origin: Origin) -> Iterator[Remedy]:
    """Most promising first."""
    yield from _BY_ORIGIN[origin.kind](case, origin)


def _data(case: Case, origin: Origin) -> Iterator[Remedy]:
    yield Remedy(
        "Look at the batch of this step, and leave out samples that are not finite.", check_batch(case.bad.step),
        "the model's own input was not finite",
    )  # fmt: skip


def _weight(case: Case, origin: Origin) -> Iterator[Remedy]:
    if case.is_first_step():
        yield Remedy(
            "Look for parameters that are not finite right after building or loading the model.", BAD_PARAMETERS,
            "it was so at the first step that is recorded",
        )  # fmt: skip
        return
    yield Remedy(
        "Look whether the optimizer or something else writes it: check the parameters after the update.",
        BAD_PARAMETERS, "what wrote it is not recorded; attach(level='frames', weight_every=1) records it",
    )  # fmt: skip


def _optimizer(case: Case, origin: Origin) -> Iterator[Remedy]:
    optimizer = optimizer_of(case, origin.where)
    if origin.cause == "eps" and optimizer is not None:
        yield Remedy(
            f"Give {optimizer.name} an eps that the parameters' dtype holds, or keep the parameters in float32.",
            OPTIMIZER_EPS, "its update divided 0 by 0",
        )  # fmt: skip
        return
    growth = case.gradient_growth or case.output_growth
    because = "the weights or their updates turned bad while the gradients were finite"
    yield Remedy("Lower the learning rate, or warm it up for longer.", WARM_UP, because)
    if growth is not None:
        yield (
            clip(growth)
            if case.gradient_growth is not None
            else Remedy(
                "Clip the gradients.",
                CLIP,
                f"outputs grew {growth.bits_a_step:.2g} bits a step for {growth.steps} steps",
            )
        )


def _loss(case: Case, origin: Origin) -> Iterator[Remedy]:
    growth = case.output_growth
    if growth is not None:
        yield from growth_remedies(case, growth)
        return
    yield Remedy(
        "Give the loss the logits and not their softmax or sigmoid, and let it see at least one target.", LOSS,
        "the outputs were finite and the loss was not",
    )  # fmt: skip
    yield Remedy(
        "Look at the targets of this step.", check_targets(case.bad.step), "the loss also depends on the targets"
    )


def _backward(case: Case, origin: Origin) -> Iterator[Remedy]:
    if case.gradient_growth is not None:
        yield from growth_remedies(case, case.gradient_growth)
    elif case.growth is not None:
        yield from growth_remedies(case, case.growth)
    else:
        yield Remedy(
            "sqrt, norm, pow below 1, log and division have an infinite gradient at 0: keep their input away from it.",
            away_inside(origin.where), "the forward was finite, and the gradient had not grown before",
        )  # fmt: skip
    yield Remedy(
        "Have torch name the operation, in one slow run of these steps.", FIND_BACKWARD, "it was made in the backward"
    )
    if case.entry.dtype in NARROW:
        yield loss_scale_remedies.scaler(
            "Train with a loss scaler, which skips such steps.", device_of(case.evidence), 2**16, 2_000,
            f"the gradient is {case.entry.dtype}",
        )  # fmt: skip


def _reduction(case: Case, origin: Origin) -> Iterator[Remedy]:
    yield Remedy("Reduce the gradients in float32.", REDUCE, "they were finite before the reduction")
    yield Remedy("Clip by a norm that is finite.", CLIP_FINITE, "clipping comes between")


_BY_ORIGIN: dict[str, Callable[[Case, Origin], Iterator[Remedy]]] = {
    "data": _data, "forward": forward_remedies, "between": between_remedies, "weight": _weight, "optimizer": _optimizer,
    "loss": _loss, "backward": _backward, "reduction": _reduction,
}  # fmt: skip
