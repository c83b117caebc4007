"""Early warning: an activation at the flat ends of its curve, or an attention that looks at one place only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from rangewatch_server.rules.activations.attention_logits import is_attention
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.inputs import largest_input
from rangewatch_server.rules.phrases import listed, module_code, module_path, place, the
from rangewatch_server.rules.recent import SQUARES, Array, History, history, last_finite, only_rank, recent, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

MEASURED = 3
"""Measurements in a row."""

CLOSED_BITS = -8.0
"""A sigmoid whose largest value is below 2^-8 in all of `LASTING` points is closed."""

LASTING = 64


class Saturated(msgspec.Struct, frozen=True):
    """`text`: what was measured, a sentence; `since`, `latest`: the first and the last step at which it may have begun.
    `is_first`: no measurement before it was another; `is_known`: all of the run was looked at for that."""

    tensor: int
    slope: float
    since: int
    latest: int
    is_first: bool
    text: str
    is_known: bool = True


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first in call order, with the others."""
    tensors = tensors_of(evidence, "output")
    entries = evidence.tensors.entries
    of_class = {
        name: tensors[[entries[int(each)].module == name for each in tensors]]
        for name in ("Tanh", "Sigmoid", "Softmax")
    }
    attention = np.array([each for each in of_class["Softmax"] if is_attention(entries[int(each)])], np.int64)
    saturated = [
        *_flat(evidence, np.sort(np.concatenate([of_class["Tanh"], of_class["Sigmoid"]])), limits["least_slope"]),
        *_closed(evidence, of_class["Sigmoid"]),
        *_one_hot(evidence, attention, limits["most_one_hot"]),
    ]
    if saturated:
        order = evidence.tensors.call_index
        yield _finding(evidence, sorted(saturated, key=lambda each: (int(order[each.tensor]), each.tensor)))


def _flat(evidence: Evidence, tensors: Array, least: float) -> Iterator[Saturated]:
    """The mean slope of a tanh is 1 - rms^2; that of a sigmoid is at most that."""
    past = history(evidence, tensors, SQUARES)
    for tensor, squares in zip(tensors.tolist(), past.share("sum_sq"), strict=True):
        last = last_finite(squares, MEASURED)
        if len(last) == MEASURED and 1 - last.min() < least:
            slope = max(0.0, float(1 - last[-1]))
            text = (
                f"Its root mean square is {np.sqrt(last[-1]):.5f}, of at most 1: its mean slope is at most {slope:.2g}."
            )
            yield Saturated(tensor, slope, *_since(past, squares, 1 - squares < least), text)


def _since(past: History, measured: Array, holds: Array) -> tuple[int, int, bool]:
    """The first and the last step at which what `holds` in the last measurements may have begun, and whether it did in
    all."""
    at = np.flatnonzero(np.isfinite(measured))
    others = np.flatnonzero(~holds[at])
    first = at[others[-1] + 1] if len(others) else at[0]
    return int(past.starts[first]), int(past.ends[first]), not len(others)


def _closed(evidence: Evidence, tensors: Array) -> Iterator[Saturated]:
    points = recent(evidence)
    for tensor in tensors.tolist():
        bits = points.bits[tensor]
        last = last_finite(bits, LASTING)
        if len(last) == LASTING and last.max() < CLOSED_BITS:
            at = np.flatnonzero(np.isfinite(bits))
            open_at = np.flatnonzero(bits[at] >= CLOSED_BITS)
            since = int(points.steps[at[open_at[-1] + 1 if len(open_at) else 0]])
            text = f"The largest of all its values in {LASTING} steps is {2.0 ** last.max():.2g}: nothing passes."
            is_known = bool(len(open_at)) or int(points.steps[0]) <= evidence.start
            yield Saturated(tensor, float(2.0 ** last.max()), since, since, not len(open_at), text, is_known)


def _one_hot(evidence: Evidence, tensors: Array, most: float) -> Iterator[Saturated]:
    """Squares of a row of a softmax add up to 1 where one place has all of it; the row is the last dimension."""
    past = history(evidence, tensors, SQUARES)
    for tensor, squares in zip(tensors.tolist(), past.share("sum_sq"), strict=True):
        width = evidence.tensors.entries[tensor].shape[-1:]
        squares = squares * (width[0] if width else 0)
        last = last_finite(squares, MEASURED)
        if len(last) == MEASURED and width[0] > 1 and most <= last.min() and last.max() <= 1.001:
            text = (
                f"The squares of a row of {width[0]} add up to {last[-1]:.4f} in the mean: 1 is one place that has all."
            )
            yield Saturated(tensor, max(0.0, float(1 - last[-1])), *_since(past, squares, squares >= most), text)


def _finding(evidence: Evidence, saturated: list[Saturated]) -> Finding:
    first = saturated[0]
    entry = evidence.tensors.entries[first.tensor]
    rank = only_rank(evidence)
    where = place(first.since, rank)
    more = [evidence.tensors.entries[each.tensor] for each in saturated[1:]]
    when = (
        f"It has been so since step {first.since} or before."
        if not first.is_known
        else "It has been so in all measurements of the run."
        if first.is_first
        else f"It has been so since a step from {first.since} to {first.latest}."
    )
    return Finding(
        rank=rank, step=first.since, tensor=entry.fqn, kind=entry.kind, subject="saturated",
        summary=f"{where}: {the(entry)} ({entry.module}) is saturated and passes next to no gradient back.",
        evidence=(first.text, when, *([f"{len(more)} more are: {listed(more)}."] if more else [])),
        remedy=(_remedy(evidence, first, module_path(evidence.tensors.entries, entry.fqn)),),
        facts={
            "mean_slope": first.slope, "tensors": len(saturated), "since_step": first.since,
            "latest_step": first.latest, "cause_class": "dead_units",
        },
    )  # fmt: skip


LARGE_INPUT, FIRST = 20.0, 64
"""Root mean square of what the model is given, in so many first steps, from which on features or pictures were not
normalised."""


def _remedy(evidence: Evidence, first: Saturated, module: str) -> Remedy:
    code = (
        "def normalised(module, args):\n"
        "    return tuple(torch.nn.functional.layer_norm(each, each.shape[-1:]) for each in args)\n"
        f"{module_code(module)}.register_forward_pre_hook(normalised)"
    )
    if not first.is_first:
        return Remedy(
            "Look at the inputs of this module: normalise them, or lower the learning rate; and go back to a "
            f"checkpoint from before step {first.since}: the updates that made them so large are in the weights.", code,
            "based on the mean square of its output, which had been another one before",
        )  # fmt: skip
    if not first.is_known:
        return Remedy(
            "Look at the inputs of this module: normalise them, or lower the learning rate and first weights.", code,
            "based on the size of its output in the last steps",
        )  # fmt: skip
    stop = min(evidence.whole_stop, evidence.start + FIRST)
    largest = largest_input(evidence, evidence.start, stop)
    if largest >= LARGE_INPUT:
        return Remedy(
            f"Normalise what the model is given, whose root mean square is {largest:.3g}: subtract the mean of each "
            "feature and divide it by its deviation.",
            "def standardised(x, mean, deviation):  # of each feature, over the training data\n"
            "    return (x - mean) / deviation.clamp(min=1e-6)",
            "based on the mean square of its output, and on the size of what the model is given",
        )  # fmt: skip
    return Remedy(
        "Look at the inputs of this module: normalise them, or begin with smaller weights before it.", code,
        "based on the mean square of its output, which was so from the first measurement on",
    )  # fmt: skip


RULE = Rule(
    name="saturated_activation",
    title="Saturated activation",
    severity="warning",
    explanation="The outputs of a tanh or a sigmoid lie at the flat ends of the curve, or a softmax of an attention "
    "gives everything to one place: the slope there is next to 0, and so is the gradient that passes. Modules are "
    "known by their class; functions that are called are not seen.",
    check=check,
    thresholds=(
        Threshold("least_slope", 0.005, "of 1", "Mean slope below which a tanh or sigmoid is saturated."),
        Threshold("most_one_hot", 0.999, "fraction", "Mean sum of squares of a row above which a softmax is one-hot."),
    ),
    explains=("vanishing_gradient",),
)  # fmt: skip
