"""Settings of an optimizer that cannot work: a momentum of 1 or more, Adam's betas in the wrong order, and a decay that
takes most of each weight with one update, adds to it, or is the larger part of each gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from rangewatch.wire.events import Optimizers
from rangewatch_server.query.events import StoredEvent
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import has_fallen
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

SLOW = 0.99
"""A first beta from which on the order of Adam's betas is a mistake: its direction is then a mean over 100 steps."""


LARGE, SCALED = 1.0, ("Adam", "NAdam", "RAdam", "Adamax", "RMSprop")
"""Weight decay from which on it is a mistake in optimizers that add it to the gradient, times the weight, and then
divide by the gradient's size: gradients are far below the weights, and what is left of an update is its sign."""

FEW, FELL = 16, 0.75
"""Values whose medians are compared, and the part of the first loss to which a training has learned all the same."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first time that a setting was seen so."""
    for event, known in evidence.details(Optimizers):
        if known.momentum >= 1:
            yield _runaway(evidence, event, known)
            return
        if known.momentum >= SLOW and 0 < known.second_beta < known.momentum**2:
            yield _swapped(evidence, event, known)
            return
        if known.decay_part:
            yield (_decayed if known.decay_part > 0 else _grown)(evidence, event, known)
            return
        if (
            known.weight_decay >= LARGE
            and not known.is_decoupled
            and known.classes
            and set(known.classes) <= set(SCALED)
        ):
            yield _outweighed(evidence, event, known)
            return


PRINT_DECAY = "for group in optimizer.param_groups:\n    print(group['lr'], group.get('weight_decay'))"


def _runaway(evidence: Evidence, event: StoredEvent, known: Optimizers) -> Finding:
    rank = only_rank(evidence)
    newest = [each for _, each in evidence.details(Optimizers)][-1]
    return Finding(
        severity="info" if newest.momentum < 1 else "",
        rank=rank, step=event.step, subject="momentum",
        summary=f"{place(event.step, rank)}: the momentum of {', '.join(known.classes)} is {known.momentum:.6g}: from "
        "1 on what gradients have once added to the updates never fades.",
        evidence=(
            "An update is the gradient and this part of the update before it: above 1 it grows by itself, whatever the "
            "gradients are.",
            "Cause (shown): the optimizer's settings, such as a warm-up of the momentum that has no end.",
        ),
        remedy=(
            Remedy(
                "Keep the momentum below 1 (0.9 is usual), where it is set and where a schedule moves it; and go back "
                f"to a checkpoint from before step {event.step}.",
                "for group in optimizer.param_groups:\n    print(group.get('momentum'), group.get('betas'))",
                "the optimizer's own parameter groups were read",
            ),
        ),
        facts={"momentum": known.momentum, "is_over": newest.momentum < 1, "cause_class": "optimizer"},
    )  # fmt: skip


HALF = 0.5
"""Part of a weight of which little is left after a few updates more."""


def _decayed(evidence: Evidence, event: StoredEvent, known: Optimizers) -> Finding:
    rank, part = only_rank(evidence), known.decay_part
    newest = [each for _, each in evidence.details(Optimizers)][-1]
    what = "takes a large part of each weight" if part < HALF else "leaves hardly anything of each weight"
    what = "turns each weight over" if part > 1 else what
    of = f" of the parameter group of {known.decay_of}" if known.decay_of else ""
    return Finding(
        severity="" if newest.decay_part else "info", rank=rank, step=event.step, subject="decay",
        tensor=known.decay_of or None, kind="grad" if known.decay_of else None,
        summary=f"{place(event.step, rank)}: the weight decay{of} {what} with each update: learning rate times weight "
        f"decay is {part:.3g}.",
        evidence=(
            f"{' and '.join(known.classes)} makes of a weight {1 - part:.3g} times it, whatever its gradient is. A "
            "decay of 0.01 to 0.1 at rates below 0.01 takes less than a thousandth.",
            "Cause (shown): the optimizer's settings: the decay, or the learning rate beside it.",
        ),
        remedy=(
            Remedy(
                "Make the weight decay smaller where it is set, and where a schedule moves it; and go back to a "
                f"checkpoint from before step {event.step}.",
                PRINT_DECAY,
                "the optimizer's own parameter groups were read",
            ),
        ),
        facts={"part": part, "is_over": not newest.decay_part, "cause_class": "optimizer"},
    )  # fmt: skip


def _grown(evidence: Evidence, event: StoredEvent, known: Optimizers) -> Finding:
    rank, part = only_rank(evidence), -known.decay_part
    newest = [each for _, each in evidence.details(Optimizers)][-1]
    of = f" of the parameter group of {known.decay_of}" if known.decay_of else ""
    return Finding(
        severity="" if newest.decay_part < 0 else "info", rank=rank, step=event.step, subject="decay",
        tensor=known.decay_of or None, kind="grad" if known.decay_of else None,
        summary=f"{place(event.step, rank)}: the weight decay{of} is below 0: each update makes every weight "
        f"{part:.2g} times itself larger, whatever its gradient is.",
        evidence=(
            f"In that way a weight doubles in {max(1.0, math.log(2) / math.log1p(part)):.0f} updates.",
            "Cause (shown): the optimizer's settings: the sign of the decay.",
        ),
        remedy=(
            Remedy(
                "Give the weight decay as a number of 0 or more, where it is set and where a schedule moves it; and go "
                f"back to a checkpoint from before step {event.step}.",
                PRINT_DECAY,
                "the optimizer's own parameter groups were read",
            ),
        ),
        facts={"part": -part, "is_over": newest.decay_part >= 0, "cause_class": "optimizer"},
    )  # fmt: skip


def _outweighed(evidence: Evidence, event: StoredEvent, known: Optimizers) -> Finding:
    rank, decay = only_rank(evidence), known.weight_decay
    newest = [each for _, each in evidence.details(Optimizers)][-1]
    is_over = newest.weight_decay < LARGE
    return Finding(
        severity="info" if is_over or has_fallen(evidence, FEW, FELL) else "", rank=rank, step=event.step,
        subject="decay",
        summary=f"{place(event.step, rank)}: the weight decay of {', '.join(known.classes)} is {decay:.6g}: it adds "
        f"{decay:.6g} times each weight to its gradient, and the updates go where that points.",
        evidence=(
            "These optimizers divide by the gradient's size: where the decay is the larger part, each update moves a "
            "weight towards 0 by about the learning rate, whatever the loss asks for.",
            "Cause (shown): the optimizer's settings. A decay of 1e-4 to 0.1 is usual.",
        ),
        remedy=(
            Remedy(
                "Make the weight decay smaller, to 1e-4 or so, or give it to AdamW, which takes it from the weights "
                "and not through the gradients.",
                PRINT_DECAY,
                "the optimizer's own parameter groups were read",
            ),
        ),
        facts={"weight_decay": decay, "is_over": is_over, "cause_class": "optimizer"},
    )  # fmt: skip


def _swapped(evidence: Evidence, event: StoredEvent, known: Optimizers) -> Finding:
    rank, first, second = only_rank(evidence), known.momentum, known.second_beta
    return Finding(
        rank=rank, step=event.step, subject="betas",
        summary=f"{place(event.step, rank)}: the betas of {', '.join(known.classes)} are ({first:.6g}, {second:.6g}): "
        "the other way round they would be usual.",
        evidence=(
            f"The direction of an update is then a mean over about {round(1 / (1 - first))} steps, and what it is "
            f"divided by one over about {round(1 / (1 - second))}: a gradient that was large for a while moves the "
            "weights long after its squares are forgotten. Adam is known to converge where the first beta is below the "
            "root of the second.",
            "Cause (shown): the optimizer's settings. Against that: they may be meant.",
            "What would decide: train some hundred steps with (0.9, 0.999).",
        ),
        remedy=(
            Remedy(
                "Give the betas in the order of their moments: the mean of gradients first, that of squares second.",
                "for group in optimizer.param_groups:\n    group['betas'] = (0.9, 0.999)",
                "the optimizer's own parameter groups were read",
            ),
        ),
        facts={"betas": [first, second], "cause_class": "optimizer"},
    )  # fmt: skip


RULE = Rule(
    name="optimizer_settings",
    title="The optimizer's settings cannot work",
    severity="warning",
    explanation="A momentum of 1 or more keeps all that was ever added, so that updates grow by themselves; Adam's "
    "betas in the wrong order make a slow direction of a short-lived scale; a learning rate times weight decay of a "
    "tenth or more leaves little of the weights, and turns them over above 1; a decay below 0 makes them grow; one of "
    "1 or more in Adam outweighs the gradients. Nothing fails at once: the loss swings, stays, or climbs after some "
    "hundred steps. Read from the parameter groups on the host.",
    check=check,
    explains=(
        "exploding_gradient", "headroom_trend", "loss_spike", "short_spike", "learning_lost", "loss_plateau",
        "loss_stuck", "update_ratio", "vanishing_gradient", "dead_activation",
    ),
    leads_to=("first_nonfinite", "loss_nonfinite"),
)  # fmt: skip
