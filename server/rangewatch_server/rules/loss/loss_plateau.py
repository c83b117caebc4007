"""Worth knowing: the loss does not fall any more, and never fell by much."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import loss_name, means
from rangewatch_server.rules.phrases import loss_called
from rangewatch_server.rules.recent import only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds
from rangewatch_server.rules.trend import fit

LEVEL, GROUPS = 2, 16
"""Means of 64 steps, the last 16 of them: 1,024 steps."""

FIRST = 32
"""First steps, whose median is what the loss began with."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding."""
    name = loss_name(evidence)
    if name is None or evidence.whole_stop - evidence.start < (GROUPS + 1) * 8**LEVEL:
        return
    steps, loss = means(evidence, name, LEVEL, GROUPS)
    at = np.flatnonzero(np.isfinite(loss))
    began = evidence.series(name, evidence.start, evidence.start + FIRST)
    began = began[np.isfinite(began)]
    trend = fit(steps[at], loss[at]) if len(at) >= GROUPS - 2 else None
    if trend is None or not len(began):
        return
    first, now = float(np.median(began)), float(np.median(loss[at]))
    is_flat = abs(trend.growth) <= limits["most_change"] * abs(now) and trend.low <= 0 <= trend.high
    if is_flat and now > (1 - limits["least_learned"]) * first > 0:
        yield _finding(evidence, name, first, now, trend.first)


def _finding(evidence: Evidence, name: str, first: float, now: float, since: int) -> Finding:
    step = evidence.whole_stop - 1
    return Finding(
        rank=only_rank(evidence), step=step, subject="plateau",
        summary=f"Step {step}: {loss_called(name)} has not fallen since step {since}: {now:.4g}, at first {first:.4g}.",
        evidence=(f"Over {step - since} steps its means of 64 steps show no slope that is surely not 0.",),
        remedy=(
            Remedy(
                "Look at the learning rate, and whether all weights change and all gradients are there.",
                because="based on the loss alone",
            ),
        ),
        facts={"loss": now, "at_first": first, "since_step": since},
    )  # fmt: skip


RULE = Rule(
    name="loss_plateau",
    title="Loss does not fall",
    severity="info",
    explanation="For a thousand steps the loss has not fallen, and it is still near what it was at first. A training "
    "that has learned and has converged is not reported. Needs a logged loss.",
    check=check,
    thresholds=(
        Threshold("most_change", 0.01, "of the loss", "A larger change in 1,024 steps is none to be flat."),
        Threshold("least_learned", 0.3, "of the first loss", "A loss that fell by more has learned."),
    ),
)  # fmt: skip
