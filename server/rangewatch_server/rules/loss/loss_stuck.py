"""The loss stays at one value above what it had been, and every gradient is exactly 0: nothing is learned any more."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rangewatch_server.core import deadline
from rangewatch_server.numerics.pyramid import FANOUT, RANGES, level_for
from rangewatch_server.rules.evidence import SCAN_COLUMNS, Evidence
from rangewatch_server.rules.loss.series import loss_name
from rangewatch_server.rules.phrases import loss_called, place
from rangewatch_server.rules.recent import Array, only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

BEFORE = 64
"""Steps before it that show what the loss had been."""

NOTHING = 0.1
"""Part of what a loss usually was that each of its values before must have been above, where it is exactly 0 since: one
that is learned to the end is 0 in more and more batches."""

FEWEST = 16
"""Values before it that show this: a margin that is easy is learned in a few steps."""

SAME = 1e-3
"""Part of it by which a loss varies at most that stays at one value: batches differ."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding."""
    name, gradients = loss_name(evidence), tensors_of(evidence, "grad")
    stop = evidence.whole_stop
    lasting = int(limits["least_steps"])
    if name is None or not len(gradients) or stop - evidence.start <= lasting:
        return
    if not _is_zero(evidence, gradients, stop - lasting, stop):
        return
    since = _last_non_zero(evidence, gradients)
    if since is None or not _is_zero(evidence, gradients, since + 1, min(stop, since + 1 + lasting)):
        return
    now = evidence.series(name, max(since + 1, stop - lasting), stop)
    before = evidence.series(name, max(evidence.start, since - BEFORE), since)
    now, before = now[np.isfinite(now)], before[np.isfinite(before)]
    if not len(now) or not len(before):
        return
    level, usual = float(np.median(now)), float(np.median(before))
    if not now.any() and len(before) >= FEWEST and before.min() > NOTHING * usual:
        yield _nothing(evidence, name, since + 1, usual, len(gradients))
    elif np.ptp(now) <= SAME * abs(level) and level - usual >= limits["least_rise"] * abs(usual) and level > usual:
        yield _finding(evidence, name, since + 1, usual, level, len(gradients))


def _nothing(evidence: Evidence, name: str, step: int, usual: float, count: int) -> Finding:
    rank = only_rank(evidence)
    return Finding(
        rank=rank, step=step, subject="nothing",
        summary=f"{place(step, rank)}: {loss_called(name)} is exactly 0 from one step to the next and has been since, "
        f"and so is every gradient; before it was {usual:.4g}.",
        evidence=(
            f"All {count} gradients that are recorded are 0 in every element: nothing is learned.",
            "Cause (likely): nothing is left of the loss: a mask, or labels that are all to be ignored (-100, 255), "
            "and a division by a count that is kept above 0. Against that: a loss with a margin is 0 where all is "
            "learned, but then it is so in more and more batches first.",
            "What would decide: count the labels of one batch that are not ignored, right before the loss.",
        ),
        remedy=(
            Remedy(
                f"Look at the labels and the mask of the batches from step {step} on: whether any of them counts.", "",
                "a loss that is exactly 0 comes of nothing that was compared",
            ),
        ),
        facts={"loss": 0.0, "before": usual, "since_step": step, "gradients": count, "cause_class": "mask"},
    )  # fmt: skip


def _is_zero(evidence: Evidence, gradients: Array, start: int, stop: int) -> bool:
    """Whether gradients were observed in these steps, and all of them were 0 in every element."""
    names = ("call_count", "amax", "nan_count", "inf_count")
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, start, stop, names, gradients)
    calls, *values = (np.asarray(block.columns[each]) for each in names)
    return bool(calls.any() and not any(each.any() for each in values))


def _last_non_zero(evidence: Evidence, gradients: Array) -> int | None:
    """The last step at which any gradient was not 0."""
    start, stop = evidence.start, evidence.whole_stop
    level = level_for(stop - start, SCAN_COLUMNS)
    while True:
        deadline.check()
        names = ("amax", "nan_count", "inf_count")
        block = evidence.run.slice(RANGES, list(evidence.ranks), level, start, stop, names, gradients)
        seen = np.flatnonzero(sum(np.asarray(block.columns[each], np.float64).sum(axis=0) for each in names))
        if not len(seen):
            return None
        at, size = block.first + int(seen[-1]), FANOUT**level
        if level == 0:
            return at
        start, stop, level = max(start, at * size), min(stop, (at + 1) * size), level - 1


def _finding(evidence: Evidence, name: str, step: int, usual: float, level: float, count: int) -> Finding:
    rank = only_rank(evidence)
    return Finding(
        rank=rank, step=step, subject="stuck",
        summary=f"{place(step, rank)}: every gradient has been exactly 0 since, and {loss_called(name)} has stayed at "
        f"{level:.4g}; before it was {usual:.4g}.",
        evidence=(
            f"All {count} gradients that are recorded are 0 in every element: no step changes what the model gives.",
            "A loss that does not depend on any weight is what is left where outputs are saturated, all the same, or "
            "so large or small that differences between them are lost.",
        ),
        remedy=(
            Remedy(
                f"Go back to a checkpoint from before step {step}: it does not recover by itself.", "",
                "gradients that are exactly 0 change no weight",
            ),
            Remedy(
                f"Look at what changed right before step {step}: the learning rate of each group, and the range of the "
                "outputs that the loss is computed from.", "", "the loss had been lower until then",
            ),
        ),
        facts={"loss": level, "before": usual, "since_step": step, "gradients": count},
    )  # fmt: skip


RULE = Rule(
    name="loss_stuck",
    title="Nothing is learned any more",
    severity="warning",
    explanation="Since a step every gradient has been exactly 0, and the loss has stayed at one value that is higher "
    "than it had been. No optimizer gets out of that. A loss that reached its minimum is not reported, but one that is "
    "exactly 0 from one step to the next. Needs a logged "
    "loss.",
    check=check,
    thresholds=(
        Threshold("least_steps", 32.0, "steps", "For so long every gradient must be 0."),
        Threshold("least_rise", 0.05, "of its usual value", "By how much the loss must be higher than before."),
    ),
    explains=("vanishing_gradient", "loss_plateau"),
)  # fmt: skip
