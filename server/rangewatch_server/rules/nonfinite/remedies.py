"""What to try against a first NaN or Inf: for each origin its own, with code that names the module.

What to try against NaN or Inf that a module made in the forward, or code between modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rangewatch_server.rules.loss_scale import settings
from rangewatch_server.rules.loss_scale.causes import device_of
from rangewatch_server.rules.nonfinite.case import Case
from rangewatch_server.rules.nonfinite.code_snippets import (
    BAD_PARAMETERS,
    CLIP,
    CLIP_FINITE,
    EPS,
    FIND_BACKWARD,
    INITIAL,
    LOSS,
    OPTIMIZER_EPS,
    REDUCE,
    WARM_UP,
    away,
    away_inside,
    check_batch,
    check_targets,
    masked_softmax,
    unmasked,
    watch_inside,
)
from rangewatch_server.rules.nonfinite.forward import LARGE_BITS
from rangewatch_server.rules.nonfinite.optimizer import optimizer_of
from rangewatch_server.rules.nonfinite.origin import Origin
from rangewatch_server.rules.nonfinite.tensor_phrases import headroom, name_of, range_words
from rangewatch_server.rules.phrases import in_bfloat16, in_float32
from rangewatch_server.rules.rule import Remedy
from rangewatch_server.rules.trend import Growth

FIRST_STEPS = 5
"""Steps after the first recorded one in which initialisation is the suspect."""

NARROW = ("float16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
"""Dtypes whose largest number activations reach in practice."""


def forward_remedies(case: Case, origin: Origin) -> Iterator[Remedy]:
    name = name_of(case.entry.fqn)
    if origin.cause == "range":
        yield from _overflow(case)
    elif origin.cause == "masked":
        yield _masked(unmasked(case.entry.fqn) if "Softmax" in case.entry.module else masked_softmax(case.entry.fqn))
    elif origin.cause in ("zero", "negative"):
        yield Remedy(
            f"Keep the input of {name} away from where its function is not finite.",
            away(case.entry.fqn, origin.cause),
            f"its input held {'zeros' if origin.cause == 'zero' else 'negative elements'}",
        )  # fmt: skip
    else:
        yield _inside(case.entry.fqn, "what in it made NaN or Inf is not recorded")
    yield from _eps(case)


def _overflow(case: Case) -> Iterator[Remedy]:
    fqn, dtype = case.entry.fqn, case.entry.dtype
    facts = case.large_input
    why = f"its output is {dtype}"
    before = case.amax_before(case.bad.tensor)
    if facts is not None and headroom(dtype, facts.amax) < LARGE_BITS:
        why = f"its input had {range_words(dtype, facts.amax)}"
    elif before is not None:
        why = f"in the step before it had {range_words(dtype, before)}"
    if dtype in NARROW:
        yield Remedy(
            f"Run {name_of(fqn)} in float32, and what follows up to the next normalisation.",
            in_float32(fqn), why,
        )  # fmt: skip
        yield Remedy(
            f"Train in bfloat16, whose limit is 3.4e38 and not {dtype}'s; no loss scaler is needed then.",
            in_bfloat16(device_of(case.evidence)), "it is the range that did not suffice",
        )  # fmt: skip
    if _is_of_the_batch(case):
        yield Remedy(
            "Look at the batch of this step.", check_batch(case.bad.step), "the large input is the model's own"
        )
        return
    yield from growth_remedies(case, case.growth)
    if case.weights and case.growth is None and case.bad.step - case.evidence.start < FIRST_STEPS:
        yield Remedy(
            "Scale the initialisation down.", INITIAL.format(name=repr(_weight_name(case))),
            "it happened within the first steps that were recorded",
        )  # fmt: skip


def _is_of_the_batch(case: Case) -> bool:
    """Whether what was too large came with the batch."""
    facts = case.large_input
    is_large = facts is not None and headroom(case.entry.dtype, facts.amax) < LARGE_BITS
    return is_large and facts is not None and facts.amax in {each.amax for each in case.model_inputs or ()}


def growth_remedies(case: Case, growth: Growth | None) -> Iterator[Remedy]:
    if growth is None:
        return
    yield Remedy(
        "Lower the learning rate, or warm it up for longer.", WARM_UP,
        f"it had grown {growth.bits_a_step:.2g} bits a step for {growth.steps} steps",
    )  # fmt: skip
    if case.gradient_growth is not None:
        yield clip(case.gradient_growth)


def clip(growth: Growth) -> Remedy:
    because = f"gradients grew {growth.bits_a_step:.2g} bits a step for {growth.steps} steps"
    return Remedy("Clip the gradients.", CLIP, because)


def _eps(case: Case) -> Iterator[Remedy]:
    eps = case.context.eps if case.context is not None else None
    if "Norm" in case.entry.module and (eps is None or eps < 1e-6):
        because = "its class divides by a root" + ("" if eps is None else f", and its eps is {eps:g}")
        yield Remedy(f"Give {name_of(case.entry.fqn)} a larger eps.", EPS.format(name=repr(case.entry.fqn)), because)


def _masked(code: str) -> Remedy:
    return Remedy(
        "Let no row be masked whole, or mask with the lowest number of the dtype.", code, "whole rows were -Inf"
    )


def between_remedies(case: Case, origin: Origin) -> Iterator[Remedy]:
    if origin.cause == "masked":
        yield _masked(masked_softmax(origin.where))
    yield _inside(origin.where, "code between the modules made it, which only its values can show")


def _inside(fqn: str, because: str) -> Remedy:
    return Remedy(f"Have the values inside the forward of {name_of(fqn)} recorded.", watch_inside(fqn), because)


def _weight_name(case: Case) -> str:
    """The largest of its own weights."""
    return max(case.weights or (), key=lambda each: each.amax).name


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
        yield settings.scaler(
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
