"""How a module made NaN or Inf of finite inputs and weights, as far as its inputs and its history tell."""

from __future__ import annotations

from collections.abc import Iterator

from rangewatch_server.rules.nonfinite.case import Case
from rangewatch_server.rules.nonfinite.details import TensorDetails
from rangewatch_server.rules.nonfinite.tensor_phrases import headroom, limit_words, name_of, range_words
from rangewatch_server.rules.trend import Growth

NEAR_LIMIT_BITS = 4.0
"""Headroom of an input, or of the output a step before, from which an operation may well pass the limit."""

LARGE_BITS = 8.0
"""Headroom below which a magnitude is called large."""

_LINEAR = ("Linear", "Conv", "Embedding", "Bilinear", "RNN", "LSTM", "GRU")
"""Classes that multiply, add and squash: of finite inputs and weights they give NaN or Inf by overflow alone."""


_SQUARING = ("Norm",)
"""Classes that square what they get, in float32 or wider, and take either sign."""

_SIGNED = (*_SQUARING, "Softmax", "Attention")
"""Classes that are finite of negative elements."""


def is_masked(case: Case) -> bool:
    """Whether what is not finite in its inputs is a mask."""
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
    inputs = case.inputs or ()
    if any(each.zero_count for each in inputs) and case.bad.inf_count:
        return "zero"
    is_signed = any(word in case.entry.module for word in _SIGNED)
    if any(each.negative_count for each in inputs) and case.bad.nan_count and not is_signed:
        return "negative"
    return "zero" if any(each.zero_count for each in inputs) and case.bad.nan_count else ""


def _is_overflow(case: Case) -> bool:
    facts = case.large_input
    if facts is not None and headroom(case.entry.dtype, facts.amax) < NEAR_LIMIT_BITS:
        return True
    if _squares_overflow(case):
        return True
    before = case.amax_before(case.bad.tensor)
    if before is not None:
        left = headroom(case.entry.dtype, before)
        if left < NEAR_LIMIT_BITS or (case.growth is not None and left < case.growth.bits):
            return True
    has_weights = case.weights is not None or case.step_of_finite_weights is not None
    is_clean = case.inputs is not None and has_weights and not case.bad_inputs
    return is_clean and any(word in case.entry.module for word in _LINEAR)


def _squares_overflow(case: Case) -> bool:
    """Of a normalisation: what it gets is finite, and beyond the limit once it is squared."""
    facts = case.large_input
    if facts is None or not any(word in case.entry.module for word in _SQUARING):
        return False
    wide = "float64" if facts.dtype == "float64" else "float32"
    return headroom(wide, facts.amax) < headroom(wide, 1.0) / 2 + NEAR_LIMIT_BITS


def sentences(case: Case) -> Iterator[str]:
    """What is known of its inputs, who made them large, and its weights."""
    if case.inputs is None:
        yield from _unknown_inputs(case)
    elif case.large_input is not None:
        yield from _input(case, case.large_input)
    for each in case.bad_inputs:
        if each.masked_rows:
            yield masked_words(each)
    if case.weights:
        largest = max(case.weights, key=lambda each: each.amax)
        yield f"Its weights were finite, the largest magnitude {largest.amax:.3g} in {largest.name}."
    elif (step := case.step_of_finite_weights) is not None:
        yield f"All weights were finite when step {step} began, and so they had been: none of them made it."
    elif case.weights is None:
        yield "Its weights at this step are not recorded (kinds=frames would)."
    yield from _special_values(case)
    yield from _inside(case)


def _input(case: Case, facts: TensorDetails) -> Iterator[str]:
    maker = case.maker(facts)
    growth = case.growth_of(maker) if maker is not None else None
    sentence = f"Its {facts.name} was finite, {range_words(facts.dtype, facts.amax)}{_growing(growth)}"
    if maker is not None:
        name = name_of(case.view.entries[maker].fqn)
        is_near = headroom(case.entry.dtype, facts.amax) < LARGE_BITS
        yield f"{sentence}; {name} made it large." if is_near else f"{sentence}; it came from {name}."
    elif any(each.amax == facts.amax for each in case.model_inputs or ()):
        yield f"{sentence}; it is the model's own input."
    else:
        yield f"{sentence}."
    if facts.dtype != case.entry.dtype and headroom(case.entry.dtype, facts.amax) < NEAR_LIMIT_BITS:
        yield f"The output is {case.entry.dtype}: that amax is {limit_words(case.entry.dtype, facts.amax)}."


def masked_words(facts: TensorDetails) -> str:
    """On rows that are masked whole."""
    return (
        f"Rows of its {facts.name} that are -Inf and nothing else: {facts.masked_rows}. A softmax of such a row is NaN."
    )


def _unknown_inputs(case: Case) -> Iterator[str]:
    yield "Its inputs are not recorded (kinds=frames would)."
    if case.previous is not None:
        entry, amax = case.view.entries[case.previous], case.view.amax(case.previous)
        growth = _growing(case.growth_of(case.previous))
        yield (
            f"The output before it in call order, of {name_of(entry.fqn)}, was finite, "
            f"{range_words(entry.dtype, amax)}{growth}."
        )


def _growing(growth: Growth | None) -> str:
    return "" if growth is None else f", growing {growth.bits_a_step:.2g} bits a step for {growth.steps} steps"


def _special_values(case: Case) -> Iterator[str]:
    cause = cause_of(case)
    if _squares_overflow(case):
        yield "It squares what it gets, and sums of such squares are beyond the limit of float32."
    for each in case.inputs or ():
        if cause == "zero" and each.zero_count:
            yield f"Its {each.name} held {each.zero_count} zeros: log, rsqrt and division are not finite there."
        elif cause == "negative" and each.negative_count:
            yield f"Its {each.name} held {each.negative_count} negative elements: log, sqrt and pow are NaN there."
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
