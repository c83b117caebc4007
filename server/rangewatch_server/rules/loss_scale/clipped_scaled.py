"""Gradients are clipped while they are still multiplied by the loss scale."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rangewatch.wire.events import Clipping
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

FEW, BEFORE = 0.1, 64
"""Share of the steps in which the clip must have taken effect, of so many before it was reported."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first spell that was reported, be it over."""
    every = evidence.details(Clipping)
    for event, known in every:
        if not known.is_scaled:
            continue
        low, stop = max(evidence.start, event.step + 1 - BEFORE), event.step + 1
        scale, norm = (_finite(evidence, name, low, stop) for name in ("loss_scale", "clipped_norm"))
        if not len(scale) or not len(norm) or known.max_norm <= 0:
            continue
        usual = float(np.median(scale))
        if known.max_norm > limits["most_share"] * usual or np.mean(norm > known.max_norm) < FEW:
            continue
        last = [each for other, each in every if other.rank == event.rank][-1]
        since = event.step - known.steps + 1
        yield _finding(evidence, known, event.step, since, usual, norm, is_over=not last.is_scaled)
        return


def _finite(evidence: Evidence, name: str, start: int, stop: int) -> np.ndarray:
    values = evidence.series(name, start, stop)
    return values[np.isfinite(values)]


def _finding(
    evidence: Evidence, known: Clipping, seen: int, since: int, scale: float, norm: np.ndarray, *, is_over: bool
) -> Finding:
    rank, usual = only_rank(evidence), float(np.median(norm))
    until = "; later they were unscaled first" if is_over else ""
    return Finding(
        severity="info" if is_over else "",
        rank=rank, step=since, subject="scaled",
        summary=f"{place(since, rank)}: gradients are clipped to a norm of {known.max_norm:.3g} while they are still "
        f"multiplied by the loss scale, {scale:.5g}: unscaled that is a norm of {known.max_norm / scale:.3g}{until}.",
        evidence=(
            f"In {known.steps} steps in a row, up to step {seen}, the scaler had unscaled nothing when "
            "torch.nn.utils.clip_grad_norm_ was called.",
            f"The norm that was clipped was {usual:.3g} (median), {usual / scale:.3g} without the loss scale: what is "
            f"left of it is {min(1.0, known.max_norm / usual):.3g} of each gradient.",
            "SGD then moves the weights by as much less; Adam divides most of it out again, until its eps is no longer "
            "small beside the gradients.",
            "Cause (shown): clipping. What would decide: call scaler.unscale_(optimizer) before it, and compare the "
            "norm that the clip returns.",
        ),
        remedy=(
            Remedy(
                "Call scaler.unscale_(optimizer) before the gradients are clipped.",
                "scaler.scale(loss).backward()\n"
                "scaler.unscale_(optimizer)\n"
                "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)\n"
                "scaler.step(optimizer)",
                "the scaler's own record of its stages, and the norm and the loss scale of the same steps",
            ),
        ),
        facts={
            # What an optimizer that is new does at its first step is recorded from the second on.
            "cause_step": evidence.start if since == evidence.start + 1 else since,
            "since_step": since, "seen_step": seen, "max_norm": known.max_norm, "loss_scale": scale, "norm": usual,
            "is_over": is_over, "cause_class": "clip",
        },
    )  # fmt: skip


RULE = Rule(
    name="clipped_scaled",
    title="Scaled gradients are clipped",
    severity="warning",
    explanation="Gradients are clipped by their norm before the loss scaler has divided them by its scale, as where "
    "`scaler.unscale_(optimizer)` is missing. The limit then is thousands of times lower than it reads, so that every "
    "step is clipped to next to nothing. Needs a GradScaler and torch's own clip_grad_norm_ (torch 2.6 or newer). A "
    "limit that was multiplied by the scale is not reported.",
    check=check,
    thresholds=(
        Threshold("most_share", 0.01, "of the loss scale", "A larger limit of the norm is meant for scaled gradients."),
    ),
    explains=(
        "loss_plateau",
        "loss_stuck",
        "vanishing_gradient",
        "gradient_underflow",
        "underflow_rising",
        "update_ratio",
    ),
)
