"""How a module made NaN or Inf of finite inputs and weights, as far as its inputs and its history show."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import UNSET

from rangewatch.wire.events import TensorDetails
from rangewatch_server.rules.nonfinite.case import LINEAR, Case
from rangewatch_server.rules.nonfinite.tensor_phrases import headroom, limit_text, name_of, range_text
from rangewatch_server.rules.phrases import capital, the
from rangewatch_server.rules.trend import Growth

NEAR_LIMIT_BITS = 4.0
"""Headroom of an input, or of the output a step before, from which an operation may well pass the limit."""

LARGE_BITS = 8.0
"""Headroom below which a magnitude is called large."""

_SQUARING = ("Norm",)
"""Classes that square what they get, in float32 or wider, and take either sign."""

_SIGNED = (*_SQUARING, "Softmax", "Attention")
"""Classes that are finite of negative elements."""


def is_masked(case: Case) -> bool:
    """Whether what is not finite in its inputs is a mask."""
    if case.mask_before is not None:
        return True
    bad = case.bad_inputs
    is_attention = any(word in case.entry.module for word in ("Softmax", "Attention"))
    has_rows = any(each.masked_rows for each in bad)
    return bool(bad) and all(each.is_mask for each in bad) and (is_attention or (has_rows and bool(case.bad.nan_count)))


def cause_of(case: Case) -> str:
    """ "range": it passed the dtype's limit; "masked": rows of -Inf alone; "zero", "negative": where a function such as
    a logarithm or a division is not finite; "" when neither is shown."""
    if is_masked(case):
        return "masked"
    if _is_overflow(case):
        return "range"
    if not _is_plain_function(case):
        return ""
    if case.bad.inf_count and _zeros(case, case.bad.inf_count):
        return "zero"
    is_signed = any(word in case.entry.module for word in _SIGNED)
    if case.bad.nan_count and _negatives(case, case.bad.nan_count) and not is_signed:
        return "negative"
    return "zero" if case.bad.nan_count and _zeros(case, case.bad.nan_count) else ""


def _is_plain_function(case: Case) -> bool:
    """Whether it is a module without others in it and without parameters: others combine elements with each other."""
    prefix = f"{case.entry.fqn}." if case.entry.fqn else ""
    return not case.weights and not any(
        each.fqn.startswith(prefix) and each.fqn != case.entry.fqn for each in case.view.entries
    )


def _zeros(case: Case, count: int) -> list[TensorDetails]:
    """Inputs with as many zeros as elements are bad: fewer or more would be bad, were these the cause."""
    return [each for each in case.inputs or () if each.zero_count == count]


def _negatives(case: Case, count: int) -> list[TensorDetails]:
    """The same of negative elements."""
    return [each for each in case.inputs or () if each.negative_count == count]


def _is_overflow(case: Case) -> bool:
    large_input = case.large_input
    if large_input is not None and headroom(case.entry.dtype, large_input.amax) < NEAR_LIMIT_BITS:
        return True
    if _squares_overflow(case) or squares_pass(case):
        return True
    before = case.amax_before(case.bad.tensor)
    if before is not None:
        left = headroom(case.entry.dtype, before)
        if left < NEAR_LIMIT_BITS or (case.growth is not None and left < case.growth.bits):
            return True
    has_weights = case.weights is not None or case.step_of_finite_weights is not None
    is_clean = case.inputs is not None and has_weights and not case.bad_inputs
    return is_clean and case.entry.module in LINEAR and _may_overflow(case)


def _may_overflow(case: Case) -> bool:
    """Whether the largest sum of products of its inputs and weights passes the limit; True where one is not known."""
    if not case.inputs or not case.weights:
        return True
    largest = max(case.weights, key=lambda each: each.amax)
    shape = largest.shape
    fan_in = largest.numel if shape is UNSET or len(shape) < 2 else largest.numel // min(shape[0], shape[1])
    bound = np.float64(max(each.amax for each in case.inputs)) * largest.amax * fan_in
    return bool(headroom(case.entry.dtype, bound) < 1.0)


def _squares_overflow(case: Case) -> bool:
    """Of a normalisation: what it gets is finite, and beyond the limit once it is squared."""
    large_input = case.large_input
    if large_input is None or not any(word in case.entry.module for word in _SQUARING):
        return False
    wide = "float64" if large_input.dtype == "float64" else "float32"
    return headroom(wide, large_input.amax) < headroom(wide, 1.0) / 2 + NEAR_LIMIT_BITS


def squares_pass(case: Case) -> bool:
    """Of a module without others and without parameters that gave Inf alone: what it was given is finite, and beyond
    the limit of its output's dtype once it is squared, as norms, distances and variances do.
    """
    large_input, bad, dtype = case.large_input, case.bad, case.entry.dtype
    if large_input is None or bad.nan_count or not bad.inf_count or case.bad_inputs or not _is_plain_function(case):
        return False
    if _zeros(case, bad.inf_count) or (case.context is not None and case.context.has_positive_inf is False):
        return False
    return headroom(dtype, large_input.amax) < headroom(dtype, 1.0) / 2


def sentences(case: Case) -> Iterator[str]:
    """What is known of its inputs, who made them large, and its weights."""
    if case.inputs is None:
        yield from _unknown_inputs(case)
    elif case.large_input is not None:
        yield from _input(case, case.large_input)
    for each in case.bad_inputs:
        if each.masked_rows:
            yield masked_rows_text(each)
    if (mask := case.mask_before) is not None:
        text = mask_before_text(case, mask)
        yield capital(text)
    if case.weights:
        largest = max(case.weights, key=lambda each: each.amax)
        yield f"Its weights were finite, the largest magnitude {largest.amax:.3g} in {largest.name}."
    elif (step := case.step_of_finite_weights) is not None:
        yield f"All weights were finite when step {step} began, and so they had been: none of them made it."
    elif case.weights is None:
        yield "Its weights at this step are not recorded (kinds=frames would)."
    yield from _special_values(case)
    if (rows := whole_rows_text(case)) and not is_masked(case):
        yield rows
    yield from _inside(case)


def whole_rows_text(case: Case) -> str:
    """On NaN by whole rows, where some rows are; "" where it is not so."""
    width = case.entry.shape[-1] if case.entry.shape else 0
    if width < 2 or not case.bad.nan_count or case.bad.nan_count % width or case.bad.nan_count >= case.bad.numel:
        return ""
    rows = case.bad.nan_count // width
    return (
        f"The NaN are as many as {rows} whole row{'' if rows == 1 else 's'} of {width} elements: a row that is divided "
        "by its own sum or norm of 0 gives that, and a softmax of a row that is masked whole."
    )


def _input(case: Case, details: TensorDetails) -> Iterator[str]:
    maker = case.maker(details)
    growth = case.growth_of(maker) if maker is not None else None
    sentence = f"Its {details.name} was finite, {range_text(details.dtype, details.amax)}{_growing(growth)}"
    if maker is not None:
        name = name_of(case.view.entries[maker].fqn)
        is_near = headroom(case.entry.dtype, details.amax) < LARGE_BITS
        yield f"{sentence}; {name} made it large." if is_near else f"{sentence}; it came from {name}."
    elif any(each.amax == details.amax for each in case.model_inputs or ()):
        yield f"{sentence}; it is the model's own input."
    else:
        yield f"{sentence}."
    if details.dtype != case.entry.dtype and headroom(case.entry.dtype, details.amax) < NEAR_LIMIT_BITS:
        yield f"The output is {case.entry.dtype}: that amax is {limit_text(case.entry.dtype, details.amax)}."


def mask_before_text(case: Case, mask: int) -> str:
    """On a mask right before it, of which rows were masked whole as far as is known."""
    return (
        f"{the(case.view.entries[mask])} right before it holds -Inf by design, and whole rows of "
        f"{case.entry.shape[-1]} elements are NaN: a softmax gives that of a row that is masked whole."
    )


def masked_rows_text(details: TensorDetails) -> str:
    """On rows that are masked whole."""
    rows = f"Rows of its {details.name} that are -Inf and nothing else: {details.masked_rows}."
    return f"{rows} A softmax of such a row is NaN."


def _unknown_inputs(case: Case) -> Iterator[str]:
    yield "Its inputs are not recorded (kinds=frames would)."
    if case.previous is not None:
        entry, amax = case.view.entries[case.previous], case.view.amax(case.previous)
        growth = _growing(case.growth_of(case.previous))
        yield (
            f"The output before it in call order, of {name_of(entry.fqn)}, was finite, "
            f"{range_text(entry.dtype, amax)}{growth}."
        )


def _growing(growth: Growth | None) -> str:
    return "" if growth is None else f", growing {growth.bits_a_step:.2g} bits a step for {growth.steps} steps"


def _special_values(case: Case) -> Iterator[str]:
    cause = cause_of(case)
    if _squares_overflow(case):
        yield "It squares what it gets, and sums of such squares are beyond the limit of float32."
    elif squares_pass(case) and case.large_input is not None:
        square = case.large_input.amax**2
        yield f"The square of that is {square:.3g}, {limit_text(case.entry.dtype, square)}."
    for each in case.inputs or ():
        if cause == "zero" and each.zero_count in (case.bad.nan_count, case.bad.inf_count):
            zeros = f"{each.zero_count} zero{'' if each.zero_count == 1 else 's'}"
            yield f"Its {each.name} held {zeros}: log, rsqrt and division are not finite there."
        elif cause == "negative" and each.negative_count == case.bad.nan_count:
            elements = f"{each.negative_count} negative element{'' if each.negative_count == 1 else 's'}"
            yield f"Its {each.name} held {elements}: log, sqrt and pow are NaN there."
    if case.context is not None and case.context.eps is not None:
        yield f"Its eps is {case.context.eps:g}."


def _inside(case: Case) -> Iterator[str]:
    """Of a module that holds others: its own code made it, after the last of them."""
    prefix = f"{case.entry.fqn}." if case.entry.fqn else ""
    inner = [each for each in case.view.before(case.bad.tensor, "output") if _is_inner(case, each, prefix)]
    if inner:
        last = case.view.entries[inner[-1]].fqn
        yield f"All modules inside it gave finite outputs, {last} the last: the module's own code made it."


def _is_inner(case: Case, tensor: int, prefix: str) -> bool:
    fqn = case.view.entries[tensor].fqn
    return fqn != case.entry.fqn and fqn.startswith(prefix)
