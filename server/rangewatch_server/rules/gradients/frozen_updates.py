"""Updates in which nothing of the gradients is left any more, though there are gradients and a learning rate: Adam
divides by the root of squares that it keeps, and one that is Inf stays so and makes every update 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.gradients.small_updates import UPDATE_FRACTION
from rangewatch_server.rules.gradients.strong_decay import DECAY_FRACTION
from rangewatch_server.rules.loss.series import rates
from rangewatch_server.rules.optimizers import keeps_squares
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import Array, only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy

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


def frozen(evidence: Evidence) -> Iterator[Finding]:
    """At most one finding."""
    if not evidence.has_series(UPDATE_FRACTION) or not keeps_squares(evidence) or _has_low_precision(evidence):
        return
    low = max(evidence.start, evidence.whole_stop - STEPS)
    size, decay = (evidence.largest(name, low, evidence.whole_stop) for name in (UPDATE_FRACTION, DECAY_FRACTION))
    at = np.flatnonzero(np.isfinite(size))
    is_left = size[at] - np.maximum(decay[at], 0.0) > DECAY_ALONE * size[at]
    last = int(np.flatnonzero(is_left)[-1]) if is_left.any() else -1
    if len(at) - 1 - last < READINGS or is_left[: last + 1].sum() < BEFORE:
        return
    began, still = low + int(at[last]), low + at[last + 1 :]
    # At a rate that has fallen far, updates of float32 weights are rounded away too.
    rate = rates(evidence, began, int(still[-1]) + 1)
    rate = rate[np.isfinite(rate)]
    if not len(rate) or not rate.min() > FALLEN * rate[0] or size[at[last]] < ROUNDED:
        return
    gradients = tensors_of(evidence, "grad")
    if len(gradients) and min(_given(evidence, gradients, int(each)) for each in still[-READINGS:]) > LEAST:
        largest = _largest(evidence, gradients, began, int(still[0]))
        yield _finding(evidence, began, still, float(size[at[last]]), largest)


def _has_low_precision(evidence: Evidence) -> bool:
    """Whether updates of any weight may be lost in its rounding."""
    entries = evidence.tensors.entries
    return any(entries[each].dtype not in ("float32", "float64") for each in tensors_of(evidence, "grad").tolist())


def _given(evidence: Evidence, gradients: Array, step: int) -> float:
    """The largest gradient of any parameter at `step`, without the loss scale."""
    scale = float(evidence.series("loss_scale", step, step + 1)[0]) if evidence.is_loss_scaled else 1.0
    return _largest(evidence, gradients, step, step + 1) / (scale if scale > 0 else 1.0)


def _largest(evidence: Evidence, gradients: Array, start: int, stop: int) -> float:
    """The largest finite gradient of any parameter and rank in [start, stop)."""
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, start, stop, ("amax",), gradients)
    values = np.asarray(block.columns["amax"], np.float64)
    return float(values[np.isfinite(values)].max(initial=0.0))


def _finding(evidence: Evidence, began: int, still: Array, before: float, gradient: float) -> Finding:
    rank, seen = only_rank(evidence), int(still[-1])
    is_own = gradient >= SQUARE
    cause = (
        f"Cause (likely): a gradient of {gradient:.3g} in the steps after {began}. Its square is Inf in float32, and "
        "what Adam keeps of squares stays Inf: it divides each later update by that."
        if is_own
        else "Cause (likely): what stands between backward and optimizer.step(), as clipping or unscaling does, gave "
        "the optimizer a gradient whose square is Inf in float32, at one step: what it keeps of squares stays Inf, and "
        "each later update is divided by that. The largest gradient that a backward made in those steps was "
        f"{gradient:.3g}."
    )
    return Finding(
        rank=rank, step=began + 1, subject="frozen", kind=None,
        summary=f"{place(began + 1, rank)}, or up to {int(still[0]) - began - 1} steps later: from here on nothing of "
        "the gradients is in the updates: nothing is learned any more.",
        evidence=(
            f"Of the gradients nothing was in the update of any matrix that was looked at, in {len(still)} readings up "
            f"to step {seen}; at step {began} the largest update was {before:.2g} of its weight.",
            cause,
            "What would decide: look for Inf in the optimizer's state.",
        ),
        remedy=(
            Remedy(
                "Go back to a checkpoint from before, or empty the optimizer's state; and leave out a step whose "
                "gradients are so large when the optimizer is given them.",
                "bad = [name for name, each in model.named_parameters() for value in optimizer.state[each].values()\n"
                "       if torch.is_tensor(value) and not torch.isfinite(value).all()]\n"
                "print(bad)  # of these the state is not finite: optimizer.state.clear() begins anew",
                "no update has had anything of a gradient since",
            ),
        ),
        facts={
            "since_step": began + 1, "seen_step": seen, "readings": len(still), "gradient": gradient,
            "cause_class": "optimizer" if is_own else "clip",
        },
    )  # fmt: skip
