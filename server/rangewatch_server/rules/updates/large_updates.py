"""A learning rate that has been far too high since the first step: each update is as large as the weights themselves,
and the loss is where it began, or, of one that may be below 0, next to nothing is left of the gradients.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rangewatch.wire.events import LossFunction, Optimizers
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.diverged import diverged
from rangewatch_server.rules.loss.series import TAKEN, loss_name, rates
from rangewatch_server.rules.optimizers import keeps_squares, newest_optimizers, sampled_gradient
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import Array, only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy
from rangewatch_server.rules.updates.small_updates import ADAM

SEEN = 64
"""First steps that show it."""

LARGE = 0.5
"""Of a weight as it is initialised: an update of that size throws away what it was."""

HIGH, LONG, GUESSES, AT_CHANCE = 0.05, 192, 128, 0.03
"""The same where the loss of a classifier stays at what guessing gives: a usual rate is a fifth of that. Steps that
show that nothing is learned, or only guesses, and how near the loss must be: a model that has collapsed to one answer
for all is there.
"""

COLLAPSED = 0.03
"""Part of a first gradient that is left, in the median of the model's, where it has collapsed so. What is hard is at
chance for long before it is learned, and keeps about a third of it.
"""

FAR_TOO_HIGH, NOTHING = 0.15, 3e-3
"""The same where the loss stays anywhere else, as at the entropy of how frequent words are."""

FREQUENT, STILL, HEAD = 0.5, 0.03, 4.0
"""A language model that has collapsed learns in some steps how frequent its words are, and nothing more: part of chance
that its loss is at the least, by how much it may change from then on, and how many times as much must be left of the
gradient of the last matrix as of the others': of what is learned all become smaller alike.
"""

DIED = 1e-6
"""The same where the loss does not show whether anything is learned: nothing can be."""

STAYED = 0.9
"""Part of the first loss above which nothing was learned."""

OF_LARGEST = 0.3
"""Root mean square of a gradient, as a part of its largest magnitude: about that of a normal distribution."""


def too_large(evidence: Evidence) -> Iterator[Finding]:
    """At most one finding."""
    start = evidence.start
    name, stop = loss_name(evidence), start + SEEN
    if not evidence.began_fresh or name is None or evidence.whole_stop < stop:
        return
    loss, rate = evidence.series(name, start, stop), rates(evidence, start, stop)
    later, rate = loss[SEEN // 2 :], rate[np.isfinite(rate)]
    later, last = (each[np.isfinite(each)] for each in (later, _last(evidence, name)))
    if not np.isfinite(loss[0]) or not len(later) or not len(last) or not len(rate) or rate.min() < 0.5 * rate.max():
        return
    level, newest = float(np.median(later)), float(np.median(last))
    has_fallen = loss[0] > 0 and min(level, newest) < STAYED * loss[0]
    if has_fallen and not _is_frequency(evidence, level, newest):
        return
    if diverged(evidence, name) is not None:  # `loss_spike` says so, from the step on at which it did
        return
    part = _part(evidence, start, float(rate.max()))
    if part is None:
        return
    if has_fallen:
        if part >= FAR_TOO_HIGH and _has_collapsed(evidence) and _is_of_the_head(evidence):
            yield _finding(evidence, start, part, float(rate.max()), float(loss[0]), level, has_fallen=True)
        return
    if loss[0] <= 0:  # as of a policy: how high it is says little
        if part >= LARGE and _left(evidence, start + SEEN // 2, stop) <= DIED:
            yield _finding(evidence, start, part, float(rate.max()), float(loss[0]), level, has_died=True)
    elif (
        part >= LARGE
        or (part >= HIGH and _is_at_chance(evidence, name) and _has_collapsed(evidence))
        or (part >= FAR_TOO_HIGH and evidence.whole_stop >= LONG and _has_collapsed(evidence, NOTHING))
    ):
        yield _finding(evidence, start, part, float(rate.max()), float(loss[0]), level)


def _is_at_chance(evidence: Evidence, name: str) -> bool:
    """Whether the loss of a classifier has long been that of one that gives each class the same."""
    known = next((each for _, each in evidence.details(LossFunction)), None)
    if known is None or known.op != "nll" or known.classes < 2 or evidence.whole_stop - evidence.start < GUESSES:
        return False
    chance, stop = float(np.log(known.classes)), evidence.whole_stop
    for low, high in ((evidence.start + SEEN, evidence.start + GUESSES), (stop - SEEN, stop)):
        values = evidence.series(name, low, high)
        values = values[np.isfinite(values)]
        if not len(values) or abs(float(np.median(values)) / chance - 1) > AT_CHANCE:
            return False
    return True


def _is_frequency(evidence: Evidence, level: float, newest: float) -> bool:
    """Whether a classifier's loss is half of chance or more, and has been so for long without a change."""
    known = next((each for _, each in evidence.details(LossFunction)), None)
    if known is None or known.op != "nll" or known.classes < 2 or evidence.whole_stop < LONG:
        return False
    return level >= FREQUENT * float(np.log(known.classes)) and abs(newest / level - 1) <= STILL


def _is_of_the_head(evidence: Evidence) -> bool:
    """Whether far more is left of the gradient of the matrix nearest to the loss than of the others'."""
    wide, position = _wide(evidence), evidence.tensors.position
    low, stop = evidence.whole_stop - SEEN, evidence.whole_stop
    first, last = _sizes(evidence, evidence.start, evidence.start + 4), _sizes(evidence, low, stop)
    if len(wide) < 3 or not (first > 0).all():
        return False
    left, head = last / first, int(np.argmin([position[each] for each in wide]))
    return bool(left[head] >= HEAD * np.median(np.delete(left, head)))


def _has_collapsed(evidence: Evidence, most: float = COLLAPSED) -> bool:
    """Whether next to nothing is left of the gradients of most matrices."""
    return _left(evidence, evidence.whole_stop - SEEN, evidence.whole_stop) <= most


def _left(evidence: Evidence, low: int, stop: int) -> float:
    """Part of the first gradients that is left in the steps [low, stop), the median of the matrices'; Inf: unknown."""
    first, last = _sizes(evidence, evidence.start, evidence.start + 4), _sizes(evidence, low, stop)
    at = first > 0
    return float(np.median(last[at] / first[at])) if at.any() else float("inf")


def _sizes(evidence: Evidence, low: int, high: int) -> Array:
    """(n,) the median largest magnitude of each matrix's gradient, without the loss scale."""
    wide = np.array(_wide(evidence), np.int64)
    amax = np.asarray(evidence.run.slice(RANGES, list(evidence.ranks), 0, low, high, ("amax",), wide).columns["amax"])
    amax = amax.astype(np.float64)
    if evidence.is_loss_scaled:
        scale = evidence.series("loss_scale", low, low + amax.shape[1])
        amax = amax / np.where(scale > 0, scale, 1.0)
    there = np.isfinite(amax)
    return np.array([float(np.median(row[good])) if good.any() else 0.0 for row, good in zip(amax, there, strict=True)])


def _wide(evidence: Evidence) -> list[int]:
    """Gradients of matrices that are no table of embeddings, and that an optimizer has: no rate moves another."""
    entries, left_out = evidence.tensors.entries, frozenset(newest_optimizers(evidence).left_out)
    return [
        each
        for each in tensors_of(evidence, "grad").tolist()
        if len(entries[each].shape) > 1
        and "Embedding" not in entries[each].module
        and entries[each].fqn not in left_out
    ]


def _last(evidence: Evidence, name: str) -> Array:
    return evidence.series(name, evidence.whole_stop - SEEN // 2, evidence.whole_stop)


def _part(evidence: Evidence, start: int, rate: float) -> float | None:
    """The first update of an element over the size that matrices are initialised to, one over the root of their inputs:
    the median of the model's. None of other optimizers than SGD and Adam: Adadelta begins with next to nothing."""
    entries, wide = evidence.tensors.entries, _wide(evidence)
    names = {name for _, known in evidence.details(Optimizers) for name in known.classes}
    is_adam = bool(names) and names <= set(ADAM)
    if not wide or not (is_adam or names == {"SGD"}):
        return None
    roots = np.sqrt([np.prod(entries[each].shape[1:]) for each in wide])
    if is_adam:
        return rate * float(np.median(roots))
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, start, start + 4, ("amax",), np.array(wide))
    amax = np.asarray(block.columns["amax"], np.float64)
    size = OF_LARGEST * np.where(np.isfinite(amax), amax, 0.0).max(axis=1)
    if evidence.is_loss_scaled:
        scale = evidence.series("loss_scale", start, start + 4)
        size = size / max(1.0, float(scale[np.isfinite(scale)].max(initial=1.0)))
    size = size * _given(evidence, start)
    momentum = min(0.99, max((known.momentum for _, known in evidence.details(Optimizers)), default=0.0))
    return rate * float(np.median(size * roots)) / (1 - momentum)


def _given(evidence: Evidence, start: int) -> float:
    """Part of what the backward makes that the optimizer is given, by the gradient that is looked at there: the loop
    may divide it by a scale of its own, or clip it. 1 where that is not known."""
    sampled = sampled_gradient(evidence)
    if sampled is None or not evidence.has_series(TAKEN):
        return 1.0
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, start, start + SEEN, ("amax",), np.array(sampled[1:]))
    made, taken = np.asarray(block.columns["amax"][0], np.float64), evidence.largest(TAKEN, start, start + SEEN)
    if evidence.is_loss_scaled:
        scale = evidence.series("loss_scale", start, start + len(made))
        made = made / np.where(scale > 0, scale, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = taken / made
    parts = parts[np.isfinite(parts) & (parts > 0)]
    return min(1.0, float(np.median(parts))) if len(parts) else 1.0


def _finding(
    evidence: Evidence, step: int, part: float, rate: float, first: float, level: float, *, has_died: bool = False,
    has_fallen: bool = False,
) -> Finding:  # fmt: skip
    rank = only_rank(evidence)
    return Finding(
        rank=rank, step=step, subject="high rate", kind=None,
        summary=f"{place(step, rank)}: the learning rate of {rate:.3g} is {'far ' if part >= LARGE else ''}too high: "
        f"an update is about {part:.2g} times as large as a weight is initialised to, and "
        f"{'nothing is learned any more' if has_fallen else 'nothing is learned'}.",
        evidence=(
            f"The loss began at {first:.4g} and was {level:.4g} in the steps {step + SEEN // 2} to "
            f"{step + SEEN - 1} (median).",
            "Cause (likely): the learning rate. With "
            + (
                "Adam each element moves by about the rate itself, "
                if keeps_squares(evidence) else "SGD a weight moves by rate times gradient over 1 - momentum, "
            )
            + "and weights are initialised to about one over the root of a layer's inputs. Units die of it, or "
            "saturate.",
            *(["Next to nothing is left of the gradients that the weights had at first."] * has_died),
            *(
                [
                    "Next to nothing is left of the gradients that most weights had at first: the model gives one "
                    f"answer for all{', the most frequent' if has_fallen else ''}. Against that: where targets do not "
                    "follow from inputs, it comes to that as well."
                ]
                * (part < LARGE or has_fallen)
            ),
            "What would decide: train a hundred steps anew at a hundredth of the rate.",
        ),
        remedy=(
            Remedy(
                f"Lower the learning rate to about {rate * min(0.1, 0.01 / part):.1g}, warm it up, and begin anew.",
                f"for group in optimizer.param_groups:\n    group['lr'] = {rate * min(0.1, 0.01 / part):.1g}",
                "weights that were thrown away do not come back",
            ),
        ),
        facts={"part": part, "lr": rate, "loss": level, "since_step": step, "cause_class": "learning_rate"},
    )  # fmt: skip
