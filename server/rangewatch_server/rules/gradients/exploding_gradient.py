"""Early warning: gradients far above their own history for several steps. The first such rise of a run stays open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.gradients.rise_search import LASTING, Rise, first_rise
from rangewatch_server.rules.loss.series import loss_name
from rangewatch_server.rules.loss.spike_cause import explained, loss_left
from rangewatch_server.rules.nonfinite.causes import LIKELY
from rangewatch_server.rules.phrases import listed, place, the
from rangewatch_server.rules.recent import Array, odd_rank, recent, tensors_of, unscaled
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

KINDS = ("grad", "reduced_grad", "grad_output")
"""The first of these kinds that the run has is judged."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the gradient that rose first, of several at once the most."""
    tensors = next((each for kind in KINDS if len(each := tensors_of(evidence, kind))), None)
    if tensors is None:
        return
    rises = _more_than_rounding(evidence, tensors, first_rise(evidence, tensors, float(np.log2(limits["factor"]))))
    if rises:
        yield _finding(evidence, rises, float(np.log2(limits["factor"])))


ROUNDING_BITS = 16.0
"""Bits below the median of all gradients at which one is rounding, as of a bias before a normalisation. When that no
longer takes it away, as where batch norms are frozen, it is as large as others, and nothing explodes."""


def _more_than_rounding(evidence: Evidence, tensors: Array, rises: list[Rise]) -> list[Rise]:
    """Those whose usual height was no rounding beside what all gradients were before they rose: afterwards the others
    may have exploded as well."""
    if not rises or rises[0].step <= evidence.start:
        return rises
    step = rises[0].step - 1
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, step, step + 1, ("amax",), tensors)
    amax = np.asarray(block.columns["amax"], np.float64)
    amax = amax[np.isfinite(amax) & (amax > 0)]
    if not len(amax):
        return rises
    scale = evidence.series("loss_scale", step, step + 1)[0] if evidence.is_loss_scaled else 1.0
    median = float(np.log2(np.median(amax)) - np.log2(scale))
    return [each for each in rises if not (each.usual < median - ROUNDING_BITS and each.usual + each.bits < median + 4)]


def _finding(evidence: Evidence, rises: list[Rise], bits: float) -> Finding:
    first = rises[0]
    entry = evidence.tensors.entries[first.tensor]
    rank, others = odd_rank(evidence, first.tensor, first.seen)
    points = recent(evidence)
    now = unscaled(evidence, points)[first.tensor]
    steps, now = points.steps[np.isfinite(now)], now[np.isfinite(now)]
    is_over = len(now) >= LASTING and bool(np.median(now[-LASTING:]) < first.usual + bits / 2)
    name = loss_name(evidence)
    cause = explained(
        evidence, name if name is not None and loss_left(evidence, name, first.step) else None, first.step
    )
    is_known = cause.weights.get(cause.cause, 0.0) >= LIKELY
    return Finding(
        rank=rank, step=first.step, tensor=entry.fqn, kind=entry.kind, subject="exploding",
        summary=f"{place(first.step, rank)}: {the(entry)} rose, to {2.0**first.bits:.3g} times what had been usual "
        f"within {LASTING} steps{', and fell again' if is_over else ''}.",
        evidence=(*_evidence(evidence, rises, steps, now, others, is_over=is_over), *cause.sentences),
        remedy=cause.remedies if is_known else (_remedy(first.step),),
        facts={
            "factor": float(2.0**first.bits), "since_step": first.step, "seen_step": first.seen, "tensors": len(rises),
            "is_over": is_over, **(cause.facts() if is_known else {}),
        },
    )  # fmt: skip


def _evidence(
    evidence: Evidence, rises: list[Rise], steps: Array, now: Array, others: str, *, is_over: bool
) -> Iterator[str]:
    first = rises[0]
    scale = ", the loss scale taken out" if evidence.is_loss_scaled else ""
    least = 2.0 ** (first.usual + first.bits)
    yield (
        f"In the {LASTING} steps up to step {first.seen} its largest magnitude was {least:.3g} or more{scale}; "
        f"in 95 % of the steps before it was {2.0**first.usual:.3g} or less."
    )
    if len(now) >= LASTING and steps[-1] > first.seen:
        median = float(2.0 ** np.median(now[-LASTING:]))
        still = "is no longer so large" if is_over else "is still so large"
        yield f"It {still}: {median:.3g} (median of {LASTING} steps up to step {int(steps[-1])})."
    if others:
        yield others
    if len(rises) > 1:
        entries = [evidence.tensors.entries[each.tensor] for each in rises[1:]]
        yield f"{len(entries)} more gradients rose so: {listed(entries)}."


def _remedy(step: int) -> Remedy:
    return Remedy(
        f"Clip the gradients, and look at what changed at step {step}: the batches from there on, the weights, and the "
        "settings of the optimizer.",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)  # after scaler.unscale_(optimizer)",
        "based on the gradients' own history; why they grew is not known",
    )


RULE = Rule(
    name="exploding_gradient",
    title="Gradients explode",
    severity="warning",
    explanation="For several steps in a row the gradients of a parameter have been far larger than they usually were: "
    "the updates are, too, and the loss often follows. The first such rise of a run stays open, with what it led to.",
    check=check,
    thresholds=(
        Threshold(
            "factor", 32.0, "times its usual height", "How much larger the last steps must be.",
            (("msprobe", 1.5), ("megatron", 10.0)),
        ),
    ),
    explains=(
        "loss_spike", "vanishing_gradient", "update_ratio", "dead_activation", "saturated_activation",
        "attention_logits", "headroom_trend", "unchanged_weights",
    ),
    leads_to=("first_nonfinite", "loss_nonfinite"),
)  # fmt: skip
