"""A loss that the loss scaler has not multiplied, though it divides what the backward makes of it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rangewatch.wire.events import UnscaledLoss
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first spell that was reported, be it over."""
    every = evidence.details(UnscaledLoss)
    for event, known in every:
        if not known.steps or known.first < evidence.start:
            continue
        scale = evidence.series("loss_scale", known.first, event.step + 1)
        scale = scale[np.isfinite(scale)]
        if not len(scale) or float(np.median(scale)) < limits["least_scale"]:
            continue
        last = [each for other, each in every if other.rank == event.rank][-1]
        yield _finding(evidence, known, event.step, float(np.median(scale)), is_over=not last.steps)
        return


def _finding(evidence: Evidence, known: UnscaledLoss, seen: int, scale: float, *, is_over: bool) -> Finding:
    rank = only_rank(evidence)
    what = "one of the losses is" if known.others else "the loss is"
    until = "; later it was" if is_over else ""
    others = "others of the same steps, or other parts of it, were" if known.others else "nor was any other"
    return Finding(
        severity="info" if is_over else "",
        rank=rank, step=known.first, subject="unscaled",
        summary=f"{place(known.first, rank)}: {what} not multiplied by the loss scale, {scale:.5g}, by which the "
        f"scaler divides its gradients{until}.",
        evidence=(
            f"In all steps that were looked at from {known.first} to {seen} the graph of a loss that backward() was "
            f"called on had no multiplication by the scaler's scale; {others}.",
            f"Its gradients are {scale:.5g} times too small after scaler.unscale_() or scaler.step(): SGD hardly moves "
            "what learns from it, and Adam weighs it so much less beside the other losses, or falls below its eps.",
            "Cause (shown): loss scaling. What would decide: log the gradients' norm of that loss alone, after "
            "unscaling, and that without a scaler.",
        ),
        remedy=(
            Remedy(
                "Give every loss to scaler.scale(), or add them up before: their gradients are unscaled together.",
                "scaler.scale(loss).backward()  # of the sum, or of each loss",
                "the graph of the loss itself, and the scaler that has stepped every optimizer",
            ),
        ),
        facts={
            "since_step": known.first, "seen_step": seen, "loss_scale": scale, "others": known.others,
            "is_over": is_over, "cause_class": "loss_scale",
        },
    )  # fmt: skip


RULE = Rule(
    name="unscaled_loss",
    title="A loss is not scaled",
    severity="warning",
    explanation="A backward begins at a loss that `scaler.scale()` has not multiplied, or at a sum of which a part was "
    "not, while `scaler.step()` or `unscale_()` divides all gradients by the scale. Nothing fails: what learns from "
    "that loss has gradients thousands of times too small. Needs a GradScaler that steps every attached optimizer. "
    "Losses that a function of your own or a compiled region may have scaled are not judged, nor those that are "
    "multiplied by 8 or more, or by a tensor on a GPU, nor those inside activation checkpointing.",
    check=check,
    thresholds=(Threshold("least_scale", 8.0, "", "Least loss scale whose absence is worth a line."),),
    explains=(
        "no_gradient", "loss_plateau", "loss_stuck", "vanishing_gradient", "gradient_underflow", "underflow_rising",
        "update_ratio", "unchanged_weights", "held_at_zero",
    ),
)  # fmt: skip
