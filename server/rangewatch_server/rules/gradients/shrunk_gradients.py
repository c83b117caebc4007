"""Gradients, or the updates that SGD makes of them, that became a thousand times smaller than the backward makes them:
code between the backward and the step divides them, as one that unscales them a second time does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rangewatch.wire.events import Optimizers
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import TAKEN, UPDATE, rates
from rangewatch_server.rules.optimizers import keeps_squares, newest_optimizers, sampled_gradient, sampled_weights
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import Array, only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy

STEPS = 1_024
"""Last steps that are looked at."""

LASTING = 32
"""First steps of them that show what is usual, and last ones in which it must be so."""

SHRUNK, HIGH = 1e-3, 0.3
"""Part of the usual update that is left at most; and from which on it counts as usual: a momentum falls slowly."""

SMOOTH = 9
"""Steps of which the median is taken: of one batch the gradient may be next to nothing."""

GROWN = 10.0
"""Times as large as at first: gradients that have grown so may be clipped to what they were."""

SAME = 0.02
"""Part by which two divisions by one number may differ: by rounding, and what is small is lost in float16."""

FELL = 0.1
"""Part of the updates of before that is left at most where an optimizer that divides by squares does not make up for
it."""

NEARLY_ALL, LEAST_SCALE, NEAR_EPS = 0.9, 8.0, 1e-4
"""Part of the steps, where the scale changes between its reading and the division; the scale from which on a division
shows; and the largest element of a gradient of which small ones, a thousandth of it and less, are near Adam's eps."""

SCALED = 8.0
"""How far from one over the loss scale what is left may be that was divided by it."""


LEAVE_IT = (
    "Leave the division by the loss scale to scaler.unscale_(optimizer), once a step: scaler.step() then does not "
    "divide again."
)
UNSCALE = (
    "scaler.scale(loss).backward()\n"
    "scaler.unscale_(optimizer)  # norms that are read from here on are true\n"
    "scaler.step(optimizer)\n"
    "scaler.update()"
)


def shrunk(evidence: Evidence) -> Iterator[Finding]:
    """At most one finding."""
    given = given_less(evidence) or _always_unscaled_twice(evidence)
    if given is not None:
        yield given
        return
    optimizers = [known for _, known in evidence.details(Optimizers)]
    names = {name for known in optimizers for name in known.classes}
    if any(known.groups for known in optimizers):
        return  # what is recorded is the largest rate: that of the sampled parameter's group may have fallen
    known, sampled = sampled_weights(evidence), sampled_gradient(evidence)
    if names != {"SGD"} or not evidence.has_series(UPDATE) or sampled is None or known is None or not known.are_held:
        return
    low, stop = max(evidence.start, evidence.whole_stop - STEPS), evidence.whole_stop
    if stop - low < 2 * LASTING:
        return
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, stop, ("amax",), np.array(sampled[1:]))
    gradient = np.asarray(block.columns["amax"], np.float64).max(axis=0)
    scale = evidence.series("loss_scale", low, stop) if evidence.is_loss_scaled else np.ones(stop - low)
    update, rate = evidence.largest(UPDATE, low, stop), rates(evidence, low, stop)
    count = min(map(len, (gradient, scale, update, rate)))
    with np.errstate(divide="ignore", invalid="ignore"):
        gradient, update = gradient[:count] / scale[:count], update[:count]
        part = update / (rate[:count] * gradient)
    at = np.flatnonzero(np.isfinite(part) & (update >= 0))
    if len(at) < 2 * LASTING:
        return
    part, gradient = part[at], gradient[at]
    usual, left = float(np.median(part[:LASTING])), part[-LASTING:]
    has_grown = np.median(gradient[-LASTING:]) > GROWN * np.median(gradient[:LASTING])
    if not usual > 0 or not 0 < left.max() <= SHRUNK * usual or has_grown or _others_grew(evidence, low, stop):
        return
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(part, SMOOTH), axis=1)
    since = low + int(at[np.flatnonzero(smooth >= HIGH * usual)[-1] + SMOOTH // 2]) + 1
    yield _finding(evidence, since, float(np.median(left)) / usual, scale, sampled[0])


def given_less(evidence: Evidence) -> Finding | None:
    """By what the optimizer was given of one gradient, be it of any class, beside what the backward made of it. Info
    where updates are as large as before: one that divides by squares makes up for it."""
    known = what_is_given(evidence, max(evidence.start, evidence.whole_stop - STEPS), evidence.whole_stop)
    if known is None:
        return None
    low, at, part, unscaled, scale, name = known
    usual, left = float(np.median(part[at][:LASTING])), part[at][-LASTING:]
    has_grown = np.median(unscaled[at][-LASTING:]) > GROWN * np.median(unscaled[at][:LASTING])
    if left.max() > SHRUNK * usual or has_grown or _others_grew(evidence, low, evidence.whole_stop):
        return None
    since = low + int(at[np.flatnonzero(part[at] > SHRUNK * usual)[-1] + 1])
    fell = float(np.median(left)) / usual
    # What had been divided out once is divided out again where a loss is scaled by hand, without a scaler.
    twice = 1 / usual if usual <= SHRUNK and abs(fell / usual - 1) <= SAME else 0.0
    return _finding(evidence, since, fell, scale, name, twice=twice, is_given=True)


class Given(NamedTuple):
    """What the optimizer was given of one gradient, as part of what the backward made of it, at the steps `low` + `at`;
    what that was without the loss scale, and the scale, at each step from `low` on; and the gradient's name."""

    low: int
    at: Array
    part: Array
    unscaled: Array
    scale: Array
    name: str


def what_is_given(evidence: Evidence, low: int, stop: int) -> Given | None:
    """Of the steps [low, stop); None where too little is known."""
    sampled = sampled_gradient(evidence)
    if sampled is None or not evidence.has_series(TAKEN) or stop - low < 2 * LASTING:
        return None
    if len(newest_optimizers(evidence).classes) > 1:
        return None  # the backward of one's loss goes through what another trains, as a generator's does
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, stop, ("amax",), np.array(sampled[1:]))
    gradient = np.asarray(block.columns["amax"], np.float64).max(axis=0)
    scale = evidence.series("loss_scale", low, stop) if evidence.is_loss_scaled else np.ones(stop - low)
    with np.errstate(divide="ignore", invalid="ignore"):
        unscaled = gradient / scale
        part = evidence.largest(TAKEN, low, stop) / unscaled
    at = np.flatnonzero(np.isfinite(part) & (part > 0))
    return Given(low, at, part, unscaled, scale, sampled[0]) if len(at) >= 2 * LASTING else None


def _always_unscaled_twice(evidence: Evidence) -> Finding | None:
    """Gradients that have been divided by the loss scale once more since the first step: what the optimizer is given is
    one over it of what the backward made, in nearly every step and whatever the scale was."""
    start, stop = evidence.start, min(evidence.start + STEPS, evidence.whole_stop)
    known = what_is_given(evidence, start, stop) if evidence.is_loss_scaled else None
    if known is None:
        return None
    scale = known.scale[known.at]
    is_twice = (scale > LEAST_SCALE) & (np.abs(known.part[known.at] * scale - 1) <= SAME)
    if is_twice.mean() < NEARLY_ALL:
        return None
    rank, first = only_rank(evidence), known.low + int(known.at[is_twice][0])
    given = float(np.median(known.part[known.at] * known.unscaled[known.at]))
    is_harmless = keeps_squares(evidence) and given > NEAR_EPS
    return Finding(
        severity="info" if is_harmless else "",
        rank=rank, step=first, subject="shrunk", tensor=known.name, kind="grad",
        summary=f"{place(first, rank)}: the optimizer is given gradients that were divided by the loss scale twice, "
        f"since the first step: {given:.2g} at most of {known.name}.",
        evidence=(
            f"In {is_twice.mean():.0%} of {len(known.at)} steps what the optimizer was given of {known.name} was one "
            f"over the loss scale, {np.nanmedian(scale):.0f}, of what the backward had made, to within {SAME:.0%}.",
            "Cause (shown): loss scaling. scaler.step() or scaler.unscale_() divides by the scale, and so does other "
            "code.",
            "An Adam makes up for that, as long as gradients stay far above its eps." if keeps_squares(evidence) else
            "Updates are as many times too small.",
        ),
        remedy=(
            Remedy(
                LEAVE_IT,
                UNSCALE,
                "what the optimizer is given is one over the loss scale of what the backward makes",
            ),
        ),
        facts={"since_step": first, "part": 1 / float(np.nanmedian(scale)), "cause_class": "loss_scale"},
    )  # fmt: skip


def _others_grew(evidence: Evidence, low: int, stop: int) -> bool:
    """Whether the largest gradient of any parameter has grown: a clip by the norm of all makes the rest as small."""
    names = ("amax", "nan_count", "inf_count")
    heights = []
    for first, last in ((low, low + LASTING), (stop - LASTING, stop)):
        block = evidence.run.slice(RANGES, list(evidence.ranks), 0, first, last, names, tensors_of(evidence, "grad"))
        amax, nans, infs = (np.asarray(block.columns[name], np.float64) for name in names)
        heights.append(np.where(nans + infs > 0, np.inf, amax).max(axis=0))
    if evidence.is_loss_scaled:
        scales = [evidence.series("loss_scale", *each) for each in ((low, low + LASTING), (stop - LASTING, stop))]
        heights = [each / np.where(scale > 0, scale, np.nan) for each, scale in zip(heights, scales, strict=True)]
    before, now = (float(np.nanmedian(each)) if np.isfinite(each).any() else np.inf for each in heights)
    return now > GROWN * before


def _updates_fell(evidence: Evidence, since: int) -> bool:
    """Whether the updates of the sampled parameter are far smaller than they were before `since`, at one rate."""
    stop = evidence.whole_stop
    spans = (max(evidence.start, since - LASTING), since), (max(since, stop - LASTING), stop)
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [evidence.largest(UPDATE, low, high) / rates(evidence, low, high) for low, high in spans]
    before, now = (each[np.isfinite(each)] for each in parts)
    return bool(len(before) and len(now) and np.median(now) <= FELL * np.median(before))


def is_one_over(evidence: Evidence, part: float, scale: Array, within: float = SCALED) -> bool:
    """Whether what is left is about what a division by the loss scale leaves."""
    known = scale[np.isfinite(scale) & (scale > 1)]
    return evidence.is_loss_scaled and bool(len(known)) and 1 / within <= part * float(np.median(known)) <= within


def _finding(
    evidence: Evidence, since: int, part: float, scale: Array, name: str, *, twice: float = 0.0, is_given: bool = False
) -> Finding:
    """`is_given`: by what the optimizer was given, which says nothing of updates that are divided by squares. `twice`:
    the number that gradients had been divided by before, and are again since; 0: none."""
    rank = only_rank(evidence)
    is_scale = is_one_over(evidence, part, scale)
    times = f"{1 / part:.3g}"
    cause = (
        f"Cause (likely): loss scaling: that is about what a division by the loss scale, {np.nanmedian(scale):.0f}, "
        "leaves. scaler.step() divides by it, and so does other code before."
        if is_scale
        else f"Cause (likely): loss scaling, by hand. Before, the optimizer was given 1/{twice:.6g} of what the "
        f"backward made, as where a loss is multiplied by {twice:.6g} and gradients are divided by it; since then they "
        "are divided by the same number a second time."
        if twice
        else "Cause (likely): code between the backward and optimizer.step() that divides or clips the gradients."
    )
    what = (
        f"the optimizer is given gradients {times} times smaller than the backward makes them"
        if is_given
        else f"updates are {times} times smaller than gradient and learning rate make them"
    )
    compared = (
        f"Of {name} what the optimizer was given was compared with what the backward had made"
        if is_given
        else f"Of {name} the change at each step was compared with rate times gradient"
    )
    is_harmless = is_given and keeps_squares(evidence) and not _updates_fell(evidence, since)
    return Finding(
        severity="info" if is_harmless else "",
        rank=rank, step=since, subject="shrunk", tensor=name, kind="grad",
        summary=f"{place(since, rank)}: {what}, and {'was' if is_given else 'were'} not before"
        f"{'.' if is_harmless else ': hardly anything is learned.'}",
        evidence=(
            f"{compared}: it fell to {part:.2g} of what that had been, at the same optimizer.",
            cause,
            "What would decide: print a gradient right after the backward and right before optimizer.step().",
        ),
        remedy=(
            Remedy(
                LEAVE_IT if is_scale
                else f"Divide by the loss scale, {twice:.6g}, once: look for the second place between loss.backward() "
                "and optimizer.step() that does, such as a function that unscales and clips. Or leave it to "
                "torch.amp.GradScaler." if twice
                else "Look for what writes to .grad between loss.backward() and optimizer.step().",
                UNSCALE if is_scale else "",
                f"{'what the optimizer was given' if is_given else 'updates'} fell against the gradients that the "
                "backward made",
            ),
        ),
        facts={"since_step": since, "part": part, "cause_class": "loss_scale" if is_scale or twice else "clip"},
    )  # fmt: skip
