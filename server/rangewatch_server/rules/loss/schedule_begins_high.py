"""The learning rate begins far above the rate that its schedule was given and comes down to it: a warm-up the wrong way
round.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rangewatch.wire.events import Optimizers
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import are_known, loss_name, rates
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

STEPS = 64
"""First steps of a run that are looked at."""

TIMES, FALL = 4.0, 2.0
"""How many times the rate that the schedule was given the first one is, and how far it has come down within `STEPS`."""

GROUPS = 64

RISEN, FEWEST, IN_A_ROW = 1.1, 4, 3
"""How many times the first loss later ones of `STEPS` are where the rate does harm, values that must be known, and how
many in a row must be so high: a batch that is harder makes one."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding."""
    stop = min(evidence.start + STEPS, evidence.whole_stop)
    values = rates(evidence, evidence.start, stop)
    known = values[np.isfinite(values)]
    initial = next((each.initial_lr for _, each in evidence.details(Optimizers) if each.initial_lr > 0), 0.0)
    if len(known) < FEWEST or not initial > 0 or not np.isfinite(values[0]):
        return
    first, last = float(values[0]), float(known[-1])
    if first < TIMES * initial or (np.diff(known) > 0).any() or not 0 < last <= first / FALL:
        return
    # A group alone may begin high, as biases do in YOLO's warm-up.
    groups = [evidence.series(f"lr_group_{at}", evidence.start, evidence.start + 1) for at in range(GROUPS)
              if evidence.has_series(f"lr_group_{at}")]  # fmt: skip
    if any(len(each) and np.isfinite(each[0]) and each[0] < TIMES * initial for each in groups):
        return
    yield _finding(evidence, first, last, initial, _has_done_harm(evidence, stop))


def _has_done_harm(evidence: Evidence, stop: int) -> bool:
    """Whether the loss rose above the first one, or was no longer finite."""
    name = loss_name(evidence)
    if name is None:
        return False
    values = evidence.series(name, evidence.start, stop)[are_known(evidence, name, evidence.start, stop)]
    if not len(values) or not np.isfinite(values[0]):
        return False
    is_high = np.append(values[1:] > RISEN * abs(values[0]), False)
    lengths = np.diff(np.flatnonzero(~np.insert(is_high, 0, False))) - 1
    return bool(lengths.max(initial=0) >= IN_A_ROW) or not np.isfinite(values).all()


def _finding(evidence: Evidence, first: float, last: float, initial: float, has_done_harm: bool) -> Finding:
    rank, step = only_rank(evidence), evidence.start
    return Finding(
        severity="" if has_done_harm else "info", rank=rank, step=step, subject="schedule", kind=None,
        summary=f"{place(step, rank)}: the learning rate begins at {first:.3g}, {first / initial:.3g} times the "
        f"{initial:.3g} that its schedule was given, and comes down from there.",
        evidence=(
            f"It was {last:.3g} at most {STEPS} steps later, and never rose.",
            "The loss rose above its first value for some steps, or was no longer finite."
            if has_done_harm else "The loss did not rise above its first value for some steps in a row.",
            "Cause (likely): the schedule of the learning rate: a factor of 1 is the rate that it was given. A warm-up "
            "by steps / step in place of step / steps begins so. Against that: it may be meant.",
            "What would decide: print the factor of the schedule for the first steps.",
        ),
        remedy=(
            Remedy(
                "Let the warm-up climb to the rate: its factor begins near 0 and ends at 1.",
                "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))",
                f"the first rate is {first / initial:.3g} times the rate that the schedule was given",
            ),
        ),
        facts={"first": first, "initial": initial, "has_risen": has_done_harm, "cause_class": "learning_rate"},
    )  # fmt: skip


RULE = Rule(
    name="schedule_begins_high",
    title="The learning rate begins far above its own",
    severity="warning",
    explanation="A scheduler multiplies the rate that the optimizer was given, and as a rule by 1 at most: a warm-up "
    "climbs to it. Here the first rate is four times as high or more, and comes down within 64 steps, as where a "
    "warm-up divides by the step in place of multiplying by it. What is learned in these steps is destroyed, and units "
    "that die in them stay dead. A warning where the loss rose above its first value for a few steps, and else info. "
    "Of several parameter groups all must begin so.",
    check=check,
    explains=(
        "loss_plateau", "loss_stuck", "loss_spike", "short_spike", "vanishing_gradient", "dead_activation",
        "saturated_activation", "update_ratio", "exploding_gradient", "attention_logits", "headroom_trend",
    ),
    leads_to=("first_nonfinite", "loss_nonfinite"),
)  # fmt: skip
