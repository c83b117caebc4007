"""Worth knowing: the loss does not fall any more, and never fell by much."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rangewatch.wire.events import LossFunction
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.inputs import LARGE_INPUT, largest_input, normalise
from rangewatch_server.rules.loss.series import loss_name, means
from rangewatch_server.rules.phrases import loss_called, place
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
    if name is not None and (found := _at_chance(evidence, name)) is not None:
        yield found
        return
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


CHANCE_STEPS, CHANCE = 192, 0.03
"""Steps after which a loss may be said to be at chance, and how near, as a part of it, its means are to that."""


LARGE_STEPS = 96
"""The same where inputs were not normalised, as bytes that are not divided by 255."""

SMALL_INPUT = 0.001
"""Root mean square of all that a model is given below which it sees one thing in all rows: biases outweigh them. Rows
of a million words that are normalised have as much, those of 50,000 0.0045."""


def _at_chance(evidence: Evidence, name: str) -> Finding | None:
    """The loss of a classifier is what it is of one that gives each class the same, at first and still."""
    known = next((each for _, each in evidence.details(LossFunction)), None)
    if known is None or known.op != "nll" or known.classes < 2 or known.is_negated or known.given:
        return None
    stop, chance = evidence.whole_stop, float(np.log(known.classes))
    size = largest_input(evidence, evidence.start, evidence.start + FIRST)
    is_large = size >= LARGE_INPUT
    if not (LARGE_STEPS if is_large else CHANCE_STEPS) <= stop - evidence.start < (GROUPS + 1) * 8**LEVEL:
        return None
    third = (stop - evidence.start) // 3
    middle, last = (evidence.series(name, stop - each * third, stop - (each - 1) * third) for each in (2, 1))
    parts = [float(np.mean(each[np.isfinite(each)])) for each in (middle, last) if np.isfinite(each).any()]
    if len(parts) < 2 or any(abs(each - chance) > CHANCE * chance for each in parts):
        return None
    rank, is_small = only_rank(evidence), 0 < size < SMALL_INPUT
    return Finding(
        severity="warning" if is_small or is_large else "", rank=rank, step=evidence.start, subject="chance",
        summary=f"{place(evidence.start, rank)}: {loss_called(name)} has been that of a guess since: {parts[1]:.4g} at "
        f"step {stop - 1}, where a model that knows nothing of {known.classes} classes has ln {known.classes} = "
        f"{chance:.4g}.",
        evidence=(
            f"In the last {2 * third} steps its mean was {parts[0]:.4g} and then {parts[1]:.4g}.",
            *(
                (
                    f"Cause (possible): the data: what the model is given is next to nothing, {size:.2g} in root mean "
                    "square, as of bytes that are divided by 255 twice. Layers are initialised for about 1, and their "
                    "biases outweigh such inputs. Against that: of sparse rows a few numbers may be large.",
                    "What would decide: print mean and deviation of a batch as the model is given it.",
                )
                if is_small else _of_large(size) if is_large else _OF_LABELS
            ),
        ),
        remedy=(_SCALE_ONCE if is_small else normalise() if is_large else _SEE_LABELS,),
        facts={"loss": parts[1], "chance": chance, "classes": known.classes, "cause_class": "data"},
    )  # fmt: skip


def _of_large(size: float) -> tuple[str, ...]:
    return (
        f"Cause (likely): the data: what the model is given was not normalised: {size:.3g} in root mean square, as of "
        "bytes that were not divided by 255. Layers are initialised for about 1: first gradients, and updates by them, "
        "are as many times too large. Against that: a first layer may normalise what it is given, and a task that is "
        "hard looks the same.",
        "What would decide: print mean and deviation of a batch as the model is given it.",
    )


_OF_LABELS = (
    "Cause (possible): the data: targets that do not belong to their inputs, as where the one was shuffled or sorted "
    "without the other. Against that: a task that is hard looks the same at first, and so does a learning rate that is "
    "far too low or far too high.",
    "What would decide: train on one batch alone. Its loss falls where the model can learn at all; and print some "
    "inputs beside their labels.",
)
_SEE_LABELS = Remedy(
    "Look whether the labels are those of their inputs, row by row, as the loop gets them.", "",
    "the loss is where a guess has it",
)  # fmt: skip
_SCALE_ONCE = Remedy(
    "Scale the inputs to about 1, once: look for a division that the reader and the transform both make.",
    "def normalised(x, mean, deviation):  # of the training data\n    return (x - mean) / deviation.clamp(min=1e-6)",
    "a sample of the inputs of the first steps",
)


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
    "that has learned and has converged is not reported. Or a classifier's loss is still that of a guess after 192 "
    "steps, as of labels that are those of other rows; a warning where its inputs are next to nothing, or not "
    "normalised. Needs a logged loss.",
    check=check,
    explains=("dead_activation", "saturated_activation", "vanishing_gradient"),
    thresholds=(
        Threshold("most_change", 0.01, "of the loss", "A larger change in 1,024 steps is none to be flat."),
        Threshold("least_learned", 0.3, "of the first loss", "A loss that fell by more has learned."),
    ),
)  # fmt: skip
