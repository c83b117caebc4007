"""Weights that shrink step by step, in proportion to themselves: weight decay that is far too strong, as where it is
not multiplied by the learning rate.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rangewatch.wire.events import Optimizers
from rangewatch_server.numerics.pyramid import FANOUT, level_for
from rangewatch_server.rules.evidence import SCAN_COLUMNS, Evidence
from rangewatch_server.rules.loss.series import has_fallen, rates
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import Array, only_rank
from rangewatch_server.rules.rule import Finding, Remedy

DECAY_FRACTION = "decay_fraction"

STRONG = 0.005
"""Part of itself that a weight loses a step: half of it in 139 steps. A decay of 1 at a rate of 1e-3 takes 0.001."""

READINGS = 4
"""In a row of which it must be so. The first ones of a run are at the steps 1, 2, 4, 8 and 16."""

AS_GIVEN = 1.25
"""How many times as large as what is set, or as small, the part still is what is set."""

LATER = 32
"""Step of the run from which a reading must be so, too, where the part is not what is set: next to small weights the
first updates of a regression point against them by themselves."""

FELL, FEW = 0.75, 16
"""Part of the first loss to which a training has learned all the same, and values whose medians are compared."""


def too_strong(evidence: Evidence) -> Iterator[Finding]:
    """At most one finding, of the first readings in a row."""
    if not evidence.has_series(DECAY_FRACTION) or evidence.whole_stop - evidence.start < 2 * FEW:
        return
    decay = max((known.weight_decay for _, known in evidence.details(Optimizers)), default=0.0)
    steps, parts = _readings(evidence)
    strong = parts >= STRONG
    for at in range(len(parts) - READINGS + 1):
        if strong[at : at + READINGS].all():
            rest = np.flatnonzero(~strong[at:])
            end = at + int(rest[0]) if len(rest) else len(parts)
            if _is_decay(evidence, steps[at:end], parts[at:end], decay):
                yield _finding(evidence, steps[at:end], parts[at:end], decay)
            return


def _is_decay(evidence: Evidence, steps: Array, parts: Array, decay: float) -> bool:
    """Whether the weight decay that is set takes these parts, or may as much, and goes on."""
    part, given = float(np.median(parts)), (decay, decay * _rate(evidence, int(steps[-1])))
    if any(each > 0 and each / AS_GIVEN <= part <= each * AS_GIVEN for each in given):
        return True
    return part <= decay * AS_GIVEN and int(steps[-1]) >= evidence.start + LATER


def _readings(evidence: Evidence) -> tuple[Array, Array]:
    """(n,) steps and values; of a long run those of columns of several steps, the largest of each."""
    start, stop = evidence.start, evidence.whole_stop
    level = level_for(stop - start, SCAN_COLUMNS)
    values = evidence.largest(DECAY_FRACTION, start, stop, level)
    there = np.flatnonzero(np.isfinite(values))
    size = FANOUT**level
    return np.maximum(start, (start // size + there) * size), values[there]


def _finding(evidence: Evidence, steps: Array, parts: Array, decay: float) -> Finding:
    rank, since, part = only_rank(evidence), int(steps[0]), float(np.median(parts))
    rate = _rate(evidence, int(steps[-1]))
    return Finding(
        severity="info" if has_fallen(evidence, FEW, FELL) else "",
        rank=rank, step=since, subject="decay",
        summary=f"{place(since, rank)}: each update takes about {part:.2g} of every weight away, in proportion to the "
        f"weight itself: {_lost(part)}.",
        evidence=(
            f"So it was at {len(parts)} readings in a row up to step {int(steps[-1])}: updates point mainly against "
            f"the weights, by {parts.min():.2g} to {parts.max():.2g} of them (median of up to 8 matrices).",
            f"Cause (likely): the optimizer, its weight decay. {_setting(part, decay, rate)}",
            "What would decide: print the norm of a weight before and after optimizer.step(), with a decay of 0 too.",
        ),
        remedy=(
            Remedy(
                "Multiply the weight decay by the learning rate where the optimizer applies it, or make it smaller.",
                "def decay(weight, group):  # in the optimizer's step\n"
                "    weight.mul_(1 - group['lr'] * group['weight_decay'])",
                f"weights lose {part:.2g} of themselves a step, where less than 0.001 is usual",
            ),
        ),
        facts={
            "since_step": since, "cause_step": since, "seen_step": int(steps[READINGS - 1]), "part": part,
            "weight_decay": decay, "cause_class": "optimizer",
        },
    )  # fmt: skip


def _lost(part: float) -> str:
    if part >= 1:
        return "nothing of it is left"
    return f"half of it is gone after {max(1, round(np.log(0.5) / np.log1p(-part)))} steps"


def _setting(part: float, decay: float, rate: float) -> str:
    given = f"The largest weight_decay of a parameter group is {decay:.3g}"
    if decay / AS_GIVEN <= part <= decay * AS_GIVEN and rate < 0.5:
        return f"{given}, and that is what is taken: it is not multiplied by the learning rate ({rate:.3g})."
    if np.isfinite(rate) and decay * rate / AS_GIVEN <= part <= decay * rate * AS_GIVEN:
        return f"{given}; times the learning rate of {rate:.3g} that is what is taken."
    return f"{given}."


def _rate(evidence: Evidence, step: int) -> float:
    return float(rates(evidence, step, step + 1)[0])
