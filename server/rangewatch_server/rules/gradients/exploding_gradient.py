"""Early warning: gradients far above their own history for several steps. The first such rise of a run stays open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.gradients.rise_search import LASTING, Rise, first_rise
from rangewatch_server.rules.loss.series import loss_name, rates
from rangewatch_server.rules.loss.spike.bands import loss_left
from rangewatch_server.rules.loss.spike.cause import explained
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


RESTARTED = 2.0
"""How many times as high as its lowest in the `STEPS` before the rise a learning rate is that was raised."""

STEPS = 64

LIKE = 1.5
"""Rates that are so near one another are alike: of steps at one like it the loss says what is usual at that rate."""

FEW, SUFFERS = 8, 1.1
"""Losses whose median is compared, and the part of what is usual above which it suffers."""

MOST = 0.9
"""Quantile of losses since a rate was raised higher than ever before, which must not be above what is usual."""

SEARCHED = 4_096
"""Steps before it in which such a rate is searched for."""


class Raised(msgspec.Struct, frozen=True):
    """A learning rate that was `low` at `step` and `high` soon after; losses: `usual` at such a rate, and `now`."""

    step: int
    low: float
    high: float
    usual: float
    now: float


def _raised(evidence: Evidence, rise: Rise) -> Raised | None:
    """A learning rate that had been raised, by its schedule, while the loss does not suffer: it is no higher than it
    was at such a rate before, or before a rate that is higher than ever. None where that is not known.
    """
    loss = loss_name(evidence)
    if loss is None:
        return None
    low, stop = max(evidence.start, rise.step - SEARCHED), rise.seen + 1
    rate = rates(evidence, low, stop)
    near = rate[max(0, rise.step - STEPS - low) :]
    if not np.isfinite(near).any():
        return None
    at = max(0, rise.step - STEPS - low) + int(np.nanargmin(near))
    high = float(np.nanmax(rate[at:]))
    if not high > 0 or high < RESTARTED * rate[at]:
        return None
    end = min(evidence.whole_stop, rise.seen + STEPS)
    losses = evidence.series(loss, low, end)
    since = losses[at + 1 :][np.isfinite(losses[at + 1 :])]
    before = losses[: at + 1]
    with np.errstate(invalid="ignore"):
        alike = before[(rate[: at + 1] * LIKE >= high) & np.isfinite(before)]
    is_known_rate = bool(len(alike))
    usual = alike if is_known_rate else before[np.isfinite(before)][-FEW:]
    if not len(since) or not len(usual) or not (is_known_rate or _is_gradual(rate[at:])):
        return None
    now = since[-FEW:]
    # A rate that is higher than ever before must not have harmed for a moment either.
    worst = max(np.median(now), np.median(since[:FEW])) if is_known_rate else np.quantile(since, MOST)
    if not worst <= SUFFERS * np.median(usual):
        return None
    before = usual
    return Raised(low + at, float(rate[at]), high, float(np.median(before)), float(np.median(now)))


def _is_gradual(rate: Array) -> bool:
    """Whether (n,) rates never rise by far from one to the next, as in a warm-up."""
    known = rate[np.isfinite(rate) & (rate > 0)]
    return len(known) > FEW and bool((known[1:] <= LIKE * known[:-1]).all())


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
    raised = _raised(evidence, first)
    is_known = raised is None and cause.weights.get(cause.cause, 0.0) >= LIKELY
    sentences = cause.sentences if raised is None else (_scheduled(raised),)
    remedy = _remedy(first.step) if raised is None else _gentler(raised)
    return Finding(
        severity="" if raised is None else "info",
        rank=rank, step=first.step, tensor=entry.fqn, kind=entry.kind, subject="exploding",
        summary=f"{place(first.step, rank)}: {the(entry)} rose, to {2.0**first.bits:.3g} times what had been usual "
        f"within {LASTING} steps{', and fell again' if is_over else ''}.",
        evidence=(*_evidence(evidence, rises, steps, now, others, is_over=is_over), *sentences),
        remedy=cause.remedies if is_known else (remedy,),
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


def _scheduled(raised: Raised) -> str:
    return (
        f"The learning rate had been raised from {raised.low:.3g} at step {raised.step} to {raised.high:.3g} by its "
        f"schedule, and the loss does not suffer: {raised.now:.4g}, where {raised.usual:.4g} was "
        "usual at such a rate or right before. Gradients are larger then, and nothing need be wrong."
    )


def _gentler(raised: Raised) -> Remedy:
    return Remedy(
        "Nothing is to be done where the schedule is meant so. If the loss rises later, raise the rate over some "
        "steps, or to less than before.", "",
        f"the learning rate was raised to {raised.high:.3g}, and the loss is as usual",
    )  # fmt: skip


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
    "the updates are, too, and the loss often follows. The first such rise of a run stays open, with what it led to. "
    "Info where the learning rate had just been raised, as by a schedule, and the loss is no higher than "
    "it was at such a rate before.",
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
    leads_to=("first_nonfinite", "loss_nonfinite", "replica_mismatch"),
)  # fmt: skip
