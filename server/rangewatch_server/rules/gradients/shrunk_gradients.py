"""Updates of SGD that became a thousand times smaller than rate and gradient make them: code between the backward and
the step divides the gradients, as one that unscales them a second time does.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rangewatch.wire.events import Optimizers
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import UPDATE, rates
from rangewatch_server.rules.optimizers import sampled_gradient, sampled_weights
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import Array, only_rank
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

SCALED = 8.0
"""How far from one over the loss scale what is left may be that was divided by it."""


def shrunk(evidence: Evidence) -> Iterator[Finding]:
    """At most one finding."""
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
    if not usual > 0 or not 0 < left.max() <= SHRUNK * usual or has_grown:
        return
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(part, SMOOTH), axis=1)
    since = low + int(at[np.flatnonzero(smooth >= HIGH * usual)[-1] + SMOOTH // 2]) + 1
    yield _finding(evidence, since, float(np.median(left)) / usual, scale, sampled[0])


def is_one_over(evidence: Evidence, part: float, scale: Array, within: float = SCALED) -> bool:
    """Whether what is left is about what a division by the loss scale leaves."""
    known = scale[np.isfinite(scale) & (scale > 1)]
    return evidence.is_loss_scaled and bool(len(known)) and 1 / within <= part * float(np.median(known)) <= within


def _finding(evidence: Evidence, since: int, part: float, scale: Array, name: str) -> Finding:
    rank = only_rank(evidence)
    is_scale = is_one_over(evidence, part, scale)
    times = f"{1 / part:.3g}"
    cause = (
        f"Cause (likely): loss scaling: that is about what a division by the loss scale, {np.nanmedian(scale):.0f}, "
        "leaves. scaler.step() divides by it, and so does other code before."
        if is_scale
        else "Cause (likely): code between the backward and optimizer.step() that divides or clips the gradients."
    )
    return Finding(
        rank=rank, step=since, subject="shrunk", tensor=name, kind="grad",
        summary=f"{place(since, rank)}: updates are {times} times smaller than gradient and learning rate make them, "
        "and were not before: hardly anything is learned.",
        evidence=(
            f"Of {name} the change at each step was compared with rate times gradient: it fell to {part:.2g} of what "
            "that had been, at the same optimizer.",
            cause,
            "What would decide: print a gradient right after the backward and right before optimizer.step().",
        ),
        remedy=(
            Remedy(
                "Leave the division by the loss scale to scaler.unscale_(optimizer), once a step: scaler.step() then "
                "does not divide again." if is_scale
                else "Look for what writes to .grad between loss.backward() and optimizer.step().",
                "scaler.scale(loss).backward()\n"
                "scaler.unscale_(optimizer)  # norms that are read from here on are true\n"
                "scaler.step(optimizer)\n"
                "scaler.update()" if is_scale else "",
                "updates fell against the gradients that the backward made",
            ),
        ),
        facts={"since_step": since, "part": part, "cause_class": "loss_scale" if is_scale else "clip"},
    )  # fmt: skip
