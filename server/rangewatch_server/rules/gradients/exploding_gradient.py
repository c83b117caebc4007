"""Early warning: gradients far above their own history, and they stay there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import listed, place, the
from rangewatch_server.rules.recent import Array, odd_rank, recent, tensors_of, unscaled
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

LASTING = 5
"""Last points that must all be high."""

HISTORY = 32
"""Points before them that tell what is usual."""

EARLY = 0.75
"""Part of the points, the first ones, that is history: what has risen stays told of for a while."""

USUAL = 0.95
"""Quantile of the history that they are compared with: spikes of one step in 20 are usual."""

KINDS = ("grad", "reduced_grad", "grad_output")
"""The first of these kinds that the run has is judged."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the gradient that rose the most."""
    tensors = next((each for kind in KINDS if len(each := tensors_of(evidence, kind))), None)
    if tensors is None:
        return
    found = recent(evidence)
    bits = unscaled(evidence, found)[tensors]
    rise = rises(np.where(found.observed[tensors], bits, np.nan))
    high = np.flatnonzero(rise >= np.log2(limits["factor"]))
    if len(high):
        order = sorted(high.tolist(), key=lambda at: (-round(float(rise[at]), 3), int(tensors[at])))
        yield _finding(evidence, tensors[order], rise[order], bits[order[0]], found.steps)


def rises(bits: Array) -> Array:
    """(t,) bits by which the least of the last `LASTING` points is above the usual height before; NaN: not known.

    `bits`: (t, n), NaN where there is none.
    """
    found = np.full(len(bits), np.nan)
    for at, row in enumerate(bits):
        there = row[np.isfinite(row)]
        if len(there) >= HISTORY + LASTING:
            found[at] = there[-LASTING:].min() - _usual(there)
    return found


def _usual(there: Array) -> float:
    """Usual height of (n,) bits, of their history."""
    early = np.sort(there[: max(HISTORY, int(EARLY * len(there)))])
    return float(early[int(USUAL * len(early))])


def _began(steps: Array, bits: Array) -> int:
    """The step since which all are above the usual height."""
    known = np.flatnonzero(np.isfinite(bits))
    usual = np.flatnonzero(bits[known] <= _usual(bits[known]))  # most of the history is
    return int(steps[known[usual[-1] + 1]])


def _finding(evidence: Evidence, tensors: Array, rise: Array, bits: Array, steps: Array) -> Finding:
    entry = evidence.tensors.entries[int(tensors[0])]
    last, began = int(steps[np.isfinite(bits)][-1]), _began(steps, bits)
    rank, others = odd_rank(evidence, int(tensors[0]), last)
    text = (
        f"{place(began, rank)}: {the(entry)} rose, and is {2.0 ** rise[0]:.3g} times as large as it has usually been."
    )
    return Finding(
        rank=rank, step=began, tensor=entry.fqn, kind=entry.kind, subject="exploding", summary=text,
        evidence=tuple(_evidence(evidence, tensors, bits, last, others)),
        remedy=(_remedy(),),
        facts={"factor": float(2.0 ** rise[0]), "since_step": began, "tensors": len(tensors)},
    )  # fmt: skip


def _evidence(evidence: Evidence, tensors: Array, bits: Array, last: int, others: str) -> Iterator[str]:
    there = bits[np.isfinite(bits)]
    scale = ", the loss scale taken out" if evidence.is_loss_scaled else ""
    yield (
        f"Its largest magnitude is {2.0 ** np.median(there[-LASTING:]):.3g} (median of {LASTING} steps up to step "
        f"{last}{scale}); "
        f"before, the median of {len(there) - LASTING} steps was {2.0 ** np.median(there[:-LASTING]):.3g}."
    )
    if others:
        yield others
    if len(tensors) > 1:
        entries = [evidence.tensors.entries[int(each)] for each in tensors[1:]]
        yield f"{len(entries)} more gradients rose so: {listed(entries)}."


def _remedy() -> Remedy:
    return Remedy(
        "Clip the gradients, and lower the learning rate if they stay so large.",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)  # after scaler.unscale_(optimizer)",
        "it rests on the gradients' own history; why they grew is not known",
    )


RULE = Rule(
    name="exploding_gradient",
    title="Gradients explode",
    severity="warning",
    explanation="For several steps in a row the gradients of a parameter have been far larger than they usually were: "
    "the updates are, too, and the loss often follows.",
    check=check,
    thresholds=(
        Threshold("factor", 32.0, "times its usual height", "How much larger the last steps must be."),
    ),
    explains=("loss_spike",),
)  # fmt: skip
