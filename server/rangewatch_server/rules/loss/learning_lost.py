"""The loss had fallen and is back where it began, while the learning rate was raised: what was learned is lost."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from rangewatch.wire.events import LossFunction
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import RATES, loss_name
from rangewatch_server.rules.phrases import loss_called, place
from rangewatch_server.rules.recent import Array, only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

STEPS = 4_096
"""First steps of a run in which a warm-up may lie."""

FEW = 8
"""Values whose median is what the loss was at a time."""

LASTING, MOST = 24, 0.9
"""Values in a row for which it must be back, and the share of them that is above the middle between low and first."""

LEAST_FIRST = 0.1
"""Least first loss: those of some trainings begin near 0, and grow."""

RISE, JUMP = 1.15, 3.0
"""How many times as high as at the lowest loss the learning rate must be once the loss has stayed high, without having
fallen before it rose; and by how much it rises in one step that is no warm-up, and is named with the jump of the loss
that follows."""


class Lost(msgspec.Struct, frozen=True):
    """From `first`, or that of chance if it is lower, the loss fell to `lowest` at step `best`, and was back at `level`
    from `step` on, by `seen`."""

    first: float
    lowest: float
    best: int
    level: float
    step: int
    seen: int


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first time."""
    name = loss_name(evidence)
    rates = next((each for each in RATES if evidence.has_series(each)), None)
    if name is None or rates is None:
        return
    start, stop = evidence.start, min(evidence.start + STEPS, evidence.whole_stop)
    values = evidence.series(name, start, stop)
    at = np.flatnonzero(np.isfinite(values))
    # Two parts of a GAN's loss are a bce each, whose logged sum comes to chance as it is meant to.
    known = next((each for _, each in evidence.details(LossFunction) if each.op == "nll"), None)
    classes = 0 if known is None else known.classes
    lost = find(start + at, values[at], limits["fallen"], limits["back"], np.log(classes) if classes else np.inf)
    if lost is None:
        return
    later = evidence.series(rates, lost.best, lost.seen + 1)
    rate, later = (each[np.isfinite(each)] for each in (later[: lost.step + 1 - lost.best], later))
    if len(rate) < 2 or not 0 < rate[0] < rate[-1] or (np.diff(rate) < 0).any():
        return
    # What is learned within ten steps is lost within one: the rate goes on rising in the steps that show it.
    if later.max() >= RISE * rate[0] and (rate[1:] / rate[:-1]).max() < JUMP:
        yield _finding(evidence, name, lost, classes, float(rate[0]), float(later.max()))


def find(steps: Array, values: Array, fallen: float, back: float, chance: float = np.inf) -> Lost | None:
    """The first time that (n,) finite values at (n,) ascending steps are back at what they were at first, or at
    `chance` if that is lower: a head that was loaded, or logits that are too large, begin above it."""
    if len(values) < 2 * FEW + LASTING or not np.median(values[:FEW]) >= LEAST_FIRST:
        return None
    first = min(float(np.median(values[:FEW])), float(chance))
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(values, FEW), axis=1)  # of those up to i + FEW - 1
    lowest = np.minimum.accumulate(smooth)
    after = np.lib.stride_tricks.sliding_window_view(values, LASTING)
    for at in range(FEW, len(values) - LASTING + 1):
        low = float(lowest[at - FEW])
        if low > fallen * first or values[at] <= (low + first) / 2:
            continue
        row = after[at]
        if np.median(row) >= back * first and np.mean(row > (low + first) / 2) >= MOST:
            best = int(np.argmin(smooth[: at - FEW + 1])) + FEW - 1
            seen = int(steps[at + LASTING - 1])
            return Lost(first, low, int(steps[best]), float(np.median(row)), int(steps[at]), seen)
    return None


def _finding(evidence: Evidence, name: str, lost: Lost, classes: int, low: float, high: float) -> Finding:
    rank = only_rank(evidence)
    is_chance = classes > 1 and lost.first == float(np.log(classes))
    return Finding(
        rank=rank, step=lost.step, subject="lost",
        summary=f"{place(lost.step, rank)}: {loss_called(name)} had fallen {'below' if is_chance else 'from'} "
        f"{lost.first:.4g} to {lost.lowest:.4g} and "
        f"is back at {lost.level:.4g} since, while the learning rate was raised: what was learned is lost.",
        evidence=(
            f"It was lowest at about step {lost.best} (median of {FEW} values), at a learning rate of {low:.3g}; from "
            "step "
            f"{lost.step} on {LASTING} values in a row have a median of {lost.level:.4g}."
            + (f" The loss of a model that knows nothing, ln({classes}), is {lost.first:.4g}." if is_chance else ""),
            f"The learning rate went on rising, to {high:.3g} by step {lost.seen}.",
            "Cause (likely): the learning rate, which its warm-up raised further than the model bears. Against that: "
            "the "
            "data may have become another task at that time.",
            "What would decide: go back to a checkpoint from before it, and hold the rate at what it was then.",
        ),
        remedy=(
            Remedy(
                f"Lower the highest learning rate, to about {low:.2g} or less, and begin anew or from a checkpoint "
                "from "
                f"before step {lost.step}.",
                f"for group in optimizer.param_groups:  # a scheduler sets it anew: change it there\n"
                f"    group['lr'] = min(group['lr'], {low:.3g})",
                f"the loss fell at that rate, and was lost on the way to {high:.3g}",
            ),
        ),
        facts={
            "loss": lost.level, "before": lost.lowest, "first": lost.first, "since_step": lost.step,
            "seen_step": lost.seen, "lr_before": low, "lr": high, "cause_class": "learning_rate",
        },
    )  # fmt: skip


RULE = Rule(
    name="learning_lost",
    title="What was learned is lost",
    severity="warning",
    explanation="In a warm-up the loss first fell and then went back to where it had begun, and stayed there, while "
    "the "
    "learning rate was still being raised: as where the highest rate is ten times too large. Nothing is NaN, and the "
    "loss "
    "is that of a model that knows nothing. Needs a logged loss; the learning rate is read from the optimizer where "
    "none "
    "is logged.",
    check=check,
    thresholds=(
        Threshold("fallen", 0.85, "of the first loss", "So low it must have been before."),
        Threshold("back", 0.9, "of the first loss", "And so high again, for 24 values in a row."),
    ),
    explains=("loss_plateau", "loss_spike", "loss_stuck", "vanishing_gradient", "attention_logits", "dead_activation"),
)
