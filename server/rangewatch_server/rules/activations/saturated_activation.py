"""Early warning: an activation at the flat ends of its curve, or an attention that looks at one place only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from rangewatch_server.rules.activations.attention_logits import is_attention
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import listed, module_code, module_path, place, the
from rangewatch_server.rules.recent import SQUARES, Array, history, last_finite, only_rank, recent, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

MEASURED = 3
"""Measurements in a row."""

CLOSED_BITS = -8.0
"""A sigmoid whose largest value is below 2^-8 in all of `LASTING` points is closed."""

LASTING = 64


class Saturated(msgspec.Struct, frozen=True):
    """`text`: what was measured, a sentence; `step`: where last."""

    tensor: int
    slope: float
    step: int
    text: str


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
            at = int(past.ends[np.flatnonzero(np.isfinite(squares))[-1]])
            text = (
                f"Its root mean square is {np.sqrt(last[-1]):.5f}, of at most 1: its mean slope is at most {slope:.2g}."
            )
            yield Saturated(tensor, slope, at, text)


def _closed(evidence: Evidence, tensors: Array) -> Iterator[Saturated]:
    points = recent(evidence)
    for tensor in tensors.tolist():
        bits = points.bits[tensor]
        last = last_finite(bits, LASTING)
        if len(last) == LASTING and last.max() < CLOSED_BITS:
            at = int(points.steps[np.flatnonzero(np.isfinite(bits))[-1]])
            text = f"The largest of all its values in {LASTING} steps is {2.0 ** last.max():.2g}: nothing passes."
            yield Saturated(tensor, float(2.0 ** last.max()), at, text)


def _one_hot(evidence: Evidence, tensors: Array, most: float) -> Iterator[Saturated]:
    """Squares of a row of a softmax add up to 1 where one place has all of it; the row is the last dimension."""
    past = history(evidence, tensors, SQUARES)
    for tensor, squares in zip(tensors.tolist(), past.share("sum_sq"), strict=True):
        width = evidence.tensors.entries[tensor].shape[-1:]
        last = last_finite(squares, MEASURED) * (width[0] if width else 0)
        if len(last) == MEASURED and width[0] > 1 and most <= last.min() and last.max() <= 1.001:
            at = int(past.ends[np.flatnonzero(np.isfinite(squares))[-1]])
            text = (
                f"The squares of a row of {width[0]} add up to {last[-1]:.4f} in the mean: 1 is one place that has all."
            )
            yield Saturated(tensor, max(0.0, float(1 - last[-1])), at, text)


def _finding(evidence: Evidence, saturated: list[Saturated]) -> Finding:
    first = saturated[0]
    entry = evidence.tensors.entries[first.tensor]
    rank = only_rank(evidence)
    where = place(first.step, rank)
    more = [evidence.tensors.entries[each.tensor] for each in saturated[1:]]
    because = "based on the mean square of its output"
    module = module_path(evidence.tensors.entries, entry.fqn)
    return Finding(
        rank=rank, step=first.step, tensor=entry.fqn, kind=entry.kind, subject="saturated",
        summary=f"{where}: {the(entry)} ({entry.module}) is saturated and passes next to no gradient back.",
        evidence=(first.text, *([f"{len(more)} more are: {listed(more)}."] if more else [])),
        remedy=(
            Remedy(
                "Look at the inputs of this module: normalise them, or lower the learning rate and first weights.",
                "def normalised(module, args):\n"
                "    return tuple(torch.nn.functional.layer_norm(each, each.shape[-1:]) for each in args)\n"
                f"{module_code(module)}.register_forward_pre_hook(normalised)",
                because,
            ),
        ),
        facts={"mean_slope": first.slope, "tensors": len(saturated)},
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
