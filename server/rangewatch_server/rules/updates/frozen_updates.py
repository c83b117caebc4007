"""Updates in which nothing of the gradients is left any more, or next to nothing, though gradients and learning rate
are as they were: Adam divides by the root of squares that it keeps. One that is Inf stays so and makes every update 0;
one that is far too large makes updates small for thousands of steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.gradients.shrunk_gradients import given_less, is_one_over
from rangewatch_server.rules.loss.series import rates
from rangewatch_server.rules.optimizers import keeps_squares
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import Array, only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy
from rangewatch_server.rules.updates.small_updates import UPDATE_FRACTION
from rangewatch_server.rules.updates.strong_decay import DECAY_FRACTION, STRONG

STEPS = 4_096
"""Last steps that are looked at: a reading is made at each 32nd."""

READINGS, BEFORE = 3, 2
"""In a row, up to the last one, in which nothing is left; and those before them in which it was there."""

DECAY_ALONE = 0.01
"""Part of an update that may be left beside the decay of the weights: rounding."""

LEAST = 1e-6
"""The largest gradient of any parameter that there must be. Far below it, Adam's eps makes updates small as well."""

FALLEN, ROUNDED = 0.1, 1e-6
"""Part of the rate of before that must be left, and of a weight that its update must have been: less may be rounded."""

SQUARE = 1e18
"""Magnitude from which the square of a number is beyond float32, with room for what it is multiplied by."""


DWARFED, ALIKE, FALLS = 1e-3, 0.1, 3
"""Part of what the gradients moved before that an update may at most have, and of their size then that they must; and
readings in which it comes down to that. More slowly it may be a training that converges."""

SCALED = 32.0
"""How far from one over the loss scale what is left may be that was divided by it: Adam forgets its squares slowly."""


def frozen(evidence: Evidence) -> Iterator[Finding]:
    """At most one finding."""
    if not evidence.has_series(UPDATE_FRACTION) or not keeps_squares(evidence) or _has_low_precision(evidence):
        return
    low = max(evidence.start, evidence.whole_stop - STEPS)
    size, decay = (evidence.largest(name, low, evidence.whole_stop) for name in (UPDATE_FRACTION, DECAY_FRACTION))
    at = np.flatnonzero(np.isfinite(size))
    if len(at) <= READINGS:
        return
    left = size[at] - np.maximum(decay[at], 0.0)
    usual = float(np.median(left[: len(left) // 2 + 1]))
    is_left = (left > DECAY_ALONE * size[at]) & (left > DWARFED * usual)
    last = int(np.flatnonzero(is_left)[-1]) if is_left.any() else -1
    if len(at) - 1 - last < READINGS or is_left[: last + 1].sum() < BEFORE:
        return
    # Next to weights that a decay has taken away gradients are 0 or rounding: the decay is said then.
    if np.nanmax(decay[at[: last + 1]], initial=0.0) >= STRONG:
        return
    is_zero = not (left[last + 1 :] > DECAY_ALONE * size[at[last + 1 :]]).any()
    as_usual = np.flatnonzero(left >= ALIKE * usual)
    if not is_zero and (not len(as_usual) or last - as_usual[-1] > FALLS):
        return
    # For tens of steps after it the first moments move weights by what is far too large.
    if len(as_usual) and last - FALLS <= as_usual[-1] and (not is_zero or as_usual[-1] < last):
        last = max(0, int(as_usual[-1]) - 1)
    began, still = low + int(at[last]), low + at[last + 1 :][~is_left[last + 1 :]]
    # At a rate that has fallen far, updates of float32 weights are rounded away too.
    rate = rates(evidence, began, int(still[-1]) + 1)
    rate = rate[np.isfinite(rate)]
    if not len(rate) or not rate.min() > FALLEN * rate[0] or size[at[last]] < ROUNDED:
        return
    gradients = tensors_of(evidence, "grad")
    if not len(gradients):
        return
    given = min(_given(evidence, gradients, int(each)) for each in still[-READINGS:])
    remains = 0.0 if is_zero else float(left[-len(still) :].max() / usual)
    # Of updates that fall at once and at the same loss scale; a gradient that was too large would have shown.
    least = float(left[-len(still) :].min() / usual)
    if given <= LEAST or (not is_zero and given < ALIKE * _given(evidence, gradients, began)):
        return
    if (less := given_less(evidence)) is not None and less.severity != "info":
        return  # it was given less since then, and nothing that was too large
    largest, largest_at = _largest(evidence, gradients, began, int(still[0]))
    scale = evidence.series("loss_scale", began, int(still[-1]) + 1) if evidence.is_loss_scaled else np.ones(1)
    is_scale = not is_zero and is_one_over(evidence, least, scale, SCALED)
    yield _finding(evidence, began, still, float(size[at[last]]), largest, largest_at, remains, is_scale=is_scale)


def _has_low_precision(evidence: Evidence) -> bool:
    """Whether updates of any weight may be lost in its rounding."""
    entries = evidence.tensors.entries
    return any(entries[each].dtype not in ("float32", "float64") for each in tensors_of(evidence, "grad").tolist())


def _given(evidence: Evidence, gradients: Array, step: int) -> float:
    """The largest gradient of any parameter at `step`, without the loss scale."""
    return _largest(evidence, gradients, step, step + 1)[0]


def _largest(evidence: Evidence, gradients: Array, start: int, stop: int) -> tuple[float, int]:
    """The largest finite gradient of any parameter and rank in [start, stop), without the loss scale, and its step."""
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, start, stop, ("amax",), gradients)
    values = np.asarray(block.columns["amax"], np.float64)
    if evidence.is_loss_scaled:
        scale = evidence.series("loss_scale", start, start + values.shape[1])
        values = values / np.where(scale > 0, scale, 1.0)
    of_each = np.where(np.isfinite(values), values, 0.0).max(axis=0, initial=0.0)
    return (float(of_each.max()), start + int(of_each.argmax())) if len(of_each) else (0.0, start)


def _finding(
    evidence: Evidence, began: int, still: Array, before: float, gradient: float, gradient_at: int, remains: float,
    *, is_scale: bool,
) -> Finding:  # fmt: skip
    """`gradient`: the largest of the steps in which it began. `remains`: the part of what gradients moved before that
    the largest update since has; 0: none.
    """
    rank, seen = only_rank(evidence), int(still[-1])
    usual = _given(evidence, tensors_of(evidence, "grad"), began)
    is_own = gradient >= (usual / DWARFED if remains else SQUARE)
    what = f"is {gradient / usual:.3g} times as large as before" if remains else "is Inf in float32"
    step = gradient_at if is_own else began + 1
    when = place(step, rank) + ("" if is_own else f", or up to {int(still[0]) - began - 1} steps later")
    keeps = (
        "Adam keeps its square for a thousand steps and more, and divides each update by the root of that."
        if remains
        else "what Adam keeps of squares stays Inf: it divides each later update by that."
    )
    cause = (
        f"Cause (likely): a gradient of {gradient:.3g} at step {step}. It {what}, and {keeps}"
        if is_own and remains
        else f"Cause (likely): a gradient of {gradient:.3g} at step {step}. Its square {what}, and {keeps}"
        if is_own
        else "Cause (likely): loss scaling: what is left is about what a division by the loss scale leaves. "
        "scaler.step() divides gradients by it, and so may other code before. Against that: one gradient that was far "
        "too large when the optimizer was given it leaves such updates, too."
        if is_scale
        else "Cause (likely): what stands between backward and optimizer.step(), as clipping or unscaling does, gave "
        f"the optimizer a gradient {'far too large' if remains else 'whose square is Inf in float32'}, at one step: "
        f"{keeps} The largest gradient that a backward made in those steps was {gradient:.3g}."
    )
    nothing = f"at most {remains:.2g} of what gradients moved before" if remains else "nothing of the gradients"
    return Finding(
        rank=rank, step=step, subject="frozen", kind=None,
        summary=f"{when}: from here on {nothing} "
        f"is in the updates: {'next to ' if remains else ''}nothing is learned any more.",
        evidence=(
            f"Of the gradients {'so little' if remains else 'nothing'} was in the update of any matrix that was looked "
            f"at, in {len(still)} readings up to step {seen}; at step {began} the largest update was {before:.2g} of "
            "its weight.",
            cause,
            "What would decide: look for "
            + ("squares (exp_avg_sq) far above the gradients' own" if remains else "Inf")
            + " in the optimizer's state.",
        ),
        remedy=(
            Remedy(
                "Leave the division by the loss scale to scaler.unscale_(optimizer), once a step; or go back to a "
                "checkpoint from before it." if is_scale and not is_own
                else "Go back to a checkpoint from before, or empty the optimizer's state; and leave out a step whose "
                "gradients are so large when the optimizer is given them.",
                "for name, each in model.named_parameters():  # far above the gradient's, or not finite?\n"
                "    for key, value in optimizer.state[each].items():\n"
                "        print(name, key, float(torch.as_tensor(value).abs().max()))\n"
                "# optimizer.state.clear() begins anew",
                "gradients and learning rate are as they were, and updates are not",
            ),
        ),
        facts={
            "since_step": step, "latest_step": step if is_own else int(still[0]),
            "seen_step": seen, "readings": len(still), "gradient": gradient,
            "remains": remains, "cause_class": "optimizer" if is_own else "loss_scale" if is_scale else "clip",
        },
    )  # fmt: skip
