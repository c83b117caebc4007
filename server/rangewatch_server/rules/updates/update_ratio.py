"""Early warning: what the optimizer adds to a weight is too large for it, or too small to matter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import listed, place
from rangewatch_server.rules.recent import SQUARES, Array, History, history, only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds
from rangewatch_server.rules.updates.large_updates import too_large
from rangewatch_server.rules.updates.shrinking_rows import shrinking
from rangewatch_server.rules.updates.small_updates import too_small
from rangewatch_server.rules.updates.strong_decay import too_strong

LASTING = 3
"""Readings in a row that must be out of bounds."""


class Ratio(msgspec.Struct, frozen=True):
    """The last readings of a weight: update over weight, root mean squares or, where those are missing, `amax`."""

    tensor: int
    values: Array
    step: int


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding for too large, and one for too small; one for a rate that was too low from the first step on,
    one for a rate that was too high, one for a decay of the weights, and one for rows that shrink. These need no kinds
    of their own."""
    yield from too_small(evidence)
    strong = tuple(too_strong(evidence))
    yield from strong or shrinking(evidence)
    yield from too_large(evidence)
    ratios = list(_ratios(evidence))
    high = [each for each in ratios if each.values.min() > limits["most"]]
    low = [each for each in ratios if 0 < each.values.max() < limits["least"]]
    if high:
        yield _finding(
            evidence, sorted(high, key=lambda each: (-each.values.min(), each.tensor)), "large", limits["most"]
        )
    if low:
        yield _finding(
            evidence, sorted(low, key=lambda each: (each.values.max(), each.tensor)), "small", limits["least"]
        )


def _ratios(evidence: Evidence) -> Iterator[Ratio]:
    updates, weights = tensors_of(evidence, "update"), tensors_of(evidence, "weight")
    if not len(updates) or not len(weights):
        return
    entries = evidence.tensors.entries
    by_name = {entries[int(each)].fqn: at for at, each in enumerate(weights)}
    changes, sizes = history(evidence, updates, SQUARES), history(evidence, weights, SQUARES)
    for at, tensor in enumerate(updates):
        place = by_name.get(entries[int(tensor)].fqn)
        if place is None or len(entries[int(tensor)].shape) < 2:
            continue  # biases and scales begin at 0 or 1 and may change by their own size
        ratio = _ratio(changes, at, sizes, place)
        there = np.flatnonzero(np.isfinite(ratio))[-LASTING:]
        if len(there) == LASTING:
            yield Ratio(int(tensor), ratio[there], int(changes.ends[there[-1]]))


def _ratio(changes: History, at: int, sizes: History, place: int) -> Array:
    """(n,) of each group of steps with both; NaN where one is missing, or the weight is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        roots = changes.rms()[at] / sizes.rms()[place]
        there = (changes.columns["call_count"][at] > 0) & (sizes.columns["call_count"][place] > 0)
        largest = np.where(there, changes.columns["amax"][at] / sizes.columns["amax"][place], np.nan)
    ratio = np.where(np.isfinite(roots), roots, largest)
    return np.where(np.isfinite(ratio), ratio, np.nan)


def _finding(evidence: Evidence, ratios: list[Ratio], word: str, limit: float) -> Finding:
    first = ratios[0]
    entry = evidence.tensors.entries[first.tensor]
    rank = only_rank(evidence)
    where = place(first.step, rank)
    more = [evidence.tensors.entries[each.tensor] for each in ratios[1:]]
    return Finding(
        rank=rank, step=first.step, tensor=entry.fqn, kind="update", subject=word,
        summary=f"{where}: the optimizer's updates of {entry.fqn} are too {word}: each is {_size(first.values[-1])}.",
        evidence=(
            f"In the last {LASTING} readings the update was {', '.join(_share(each) for each in first.values)} of the "
            f"weight; the limit is {_share(limit)}, and about 0.1 % is usual.",
            *([f"{len(more)} more are: {listed(more)}."] if more else []),
        ),
        remedy=(_remedy(word),),
        facts={"ratio": float(first.values[-1]), "limit": limit, "tensors": len(ratios)},
    )  # fmt: skip


def _size(ratio: float) -> str:
    return f"{ratio:.3g} times the weight's own size" if ratio >= 1 else f"{_share(ratio)} of the weight's own size"


def _share(ratio: float) -> str:
    return f"{100 * ratio:.3g} %"


def _remedy(word: str) -> Remedy:
    because = "based on what the optimizer did, read around its step"
    code = "for group in optimizer.param_groups:\n    group['lr'] *= {}"
    if word == "large":
        return Remedy("Lower the learning rate of this parameter, or warm it up.", code.format("0.1"), because)
    return Remedy(
        "Look at the learning rate of this parameter, and at gradients below the optimizer's eps.",
        code.format("10"),
        because,
    )


RULE = Rule(
    name="update_ratio",
    title="Updates too large or too small",
    severity="warning",
    explanation="A weight changes by about a thousandth of its size a step in most trainings. Far more and what it has "
    "learned is thrown away each step; far less and it does not learn, or the change is lost in rounding. Needs the "
    "kinds update and weight. At any level: a learning rate that has been far too low since the first step, as of a "
    "warm-up that is moved once an epoch, or far too high, while the loss stays; and weights that shrink in proportion "
    "to themselves, as by a weight decay that is not multiplied by the learning rate (info where the loss falls all "
    "the same).",
    check=check,
    thresholds=(
        Threshold("most", 0.2, "of the weight", "Updates above it are too large.", (("sagemaker", 10.0),)),
        Threshold("least", 1e-8, "of the weight", "Smaller ones, but not 0, are too small.", (("sagemaker", 1e-8),)),
    ),
    explains=("vanishing_gradient", "loss_plateau", "loss_stuck", "dead_activation", "saturated_activation"),
)  # fmt: skip
