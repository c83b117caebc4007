"""Worth knowing, or wrong: a layer whose output is far larger than what comes before it, since the first step."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from rangewatch.wire.records import TensorEntry
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import Array, Evidence
from rangewatch_server.rules.inputs import LARGE_INPUT, largest_input
from rangewatch_server.rules.phrases import module_code, module_path, place, the
from rangewatch_server.rules.recent import only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

FIRST = 4
"""First steps of a run that are looked at: later ones are of trained weights."""

LINEAR = ("Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Conv1D")
"""Classes whose output is a sum of inputs times weights: as they are usually initialised it is about as large."""

FEWEST = 3
"""Such layers that are needed, to say what is usual in the model."""

MOST_NAMED = 4


class Gain(msgspec.Struct, frozen=True):
    """Output `tensor` is `factor` times as large as the output before it in call order, which is `before`, and `above`
    times as the largest of all before it: a branch may begin behind the small output of another one."""

    tensor: int
    before: int
    factor: float
    above: float


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first layer, and how many more there are."""
    high, usual, count = far(evidence, limits["factor"])
    if high:
        yield _finding(evidence, high, usual, count, evidence.start, is_wrong=_is_wrong(evidence, high[0]))


WRONG = 500.0
"""The same of a layer in the midst of the model that no factor which is meant makes so large."""


def _is_wrong(evidence: Evidence, gain: Gain) -> bool:
    """Whether it is trained, and not the last one: outputs may be scaled to their unit, and frequencies are drawn."""
    entries, position = evidence.tensors.entries, evidence.tensors.position
    linear = [int(each) for each in tensors_of(evidence, "output") if entries[int(each)].module in LINEAR]
    is_last = position[gain.tensor] >= max(position[each] for each in linear)
    trained = {entries[int(each)].fqn.rpartition(".")[0] for each in tensors_of(evidence, "grad")}
    is_far = gain.factor >= WRONG and gain.above >= FACTOR
    return is_far and not is_last and entries[gain.tensor].fqn in trained


FACTOR = 100.0


def far(evidence: Evidence, factor: float = FACTOR) -> tuple[list[Gain], float, int]:
    """In call order, those of the layers whose output is `factor` times as large as what comes before it, and as usual
    in the model, the usual factor, and how many layers there are; none where these are most of them."""
    start = evidence.run.first_step or 0
    if start or evidence.start or any(rank.rows[0].ordinal > 1 for rank in evidence.run.ranks.values()):
        return [], 0.0, 0  # of a run that went on from a checkpoint nothing is an initialisation's
    gains = gains_of(evidence, start)
    if len(gains) < FEWEST:
        return [], 0.0, 0
    usual = float(np.median([each.factor for each in gains]))
    high = [each for each in gains if each.factor >= factor and each.factor >= factor * usual]
    return (high, usual, len(gains)) if 2 * len(high) < len(gains) else ([], usual, len(gains))


def gains_of(evidence: Evidence, start: int) -> list[Gain]:
    """In call order, of the linear layers behind another output, at the first step that has them."""
    outputs = tensors_of(evidence, "output")
    stop = min(start + FIRST, evidence.whole_stop)
    if not len(outputs) or stop <= start:
        return []
    names = ("call_count", "amax", "nan_count", "inf_count")
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, start, stop, names, outputs)
    calls, amax, nans, infs = (np.asarray(block.columns[each], np.float64) for each in names)
    usable = (calls > 0) & (nans + infs == 0) & (amax > 0)
    at = int(np.argmax(usable.any(axis=0)))
    position, entries = evidence.tensors.position, evidence.tensors.entries
    order = sorted(np.flatnonzero(usable[:, at]).tolist(), key=lambda row: int(position[outputs[row]]))
    given = largest_input(evidence, start, stop)
    return list(_behind(entries, outputs, amax[:, at], order, given if given >= LARGE_INPUT else 0.0))


def _behind(
    entries: Sequence[TensorEntry], outputs: Array, amax: Array, order: list[int], given: float
) -> Iterable[Gain]:
    """`given`: how large the model's own input is, which any layer may be given besides."""
    largest = given
    for before, row in itertools.pairwise(order):
        largest = max(largest, float(amax[before]))
        if entries[int(outputs[row])].module in LINEAR:
            factor, above = float(amax[row] / max(amax[before], given)), float(amax[row] / largest)
            yield Gain(int(outputs[row]), int(outputs[before]), factor, above)


def _finding(evidence: Evidence, high: list[Gain], usual: float, count: int, step: int, *, is_wrong: bool) -> Finding:
    first, rank = high[0], only_rank(evidence)
    entry, before = (evidence.tensors.entries[each] for each in (first.tensor, first.before))
    more = [evidence.tensors.entries[each.tensor].fqn for each in high[1:]]
    named = ", ".join(more[:MOST_NAMED]) + (f" and {len(more) - MOST_NAMED} more" if len(more) > MOST_NAMED else "")
    name = the(entry)
    return Finding(
        severity="warning" if is_wrong else "",
        rank=rank, step=step, tensor=entry.fqn, kind="output", subject="gain",
        summary=f"{place(step, rank)}: {name} is {first.factor:.3g} times as large as {the(before)} before it, since "
        "the first step: its weights may be initialised far too large.",
        evidence=(
            f"Of {count} linear layers half are {usual:.3g} times as large as what comes before them, or less.",
            *([f"So are those of {len(more)} more: {named}."] if more else []),
            f"Cause ({'likely' if is_wrong else 'possible'}): the weight of that layer, as it was initialised or "
            "loaded. Against that: code between the two, such as a factor or another branch, makes what it is given as "
            "large.",
            f"What would decide: print the deviation of {entry.fqn}.weight; usual is about 1 / sqrt(its inputs).",
        ),
        remedy=(remedy(evidence, entry.fqn, "its output was so large before any update, or after the first"),),
        facts={"factor": first.factor, "usual": usual, "layers": len(high), "of": count, "cause_class": "weight"},
    )  # fmt: skip


def remedy(evidence: Evidence, fqn: str, because: str) -> Remedy:
    """Against the weights that the layer `fqn` begins with."""
    return Remedy(
        f"Look at how the weights of {fqn} are initialised, and scale them down where it is not meant: a deviation of "
        "about 1 / sqrt(its inputs) keeps what it gives as large as what it is given.",
        f"layer = {module_code(module_path(evidence.tensors.entries, fqn))}\n"
        "for name, weight in layer.named_parameters():\n"
        "    print(name, weight.std(), weight[0].numel() ** -0.5)  # the second is usual",
        because,
    )


RULE = Rule(
    name="initial_gain",
    title="Large from the start",
    severity="info",
    explanation="In the first steps the output of a linear layer or a convolution was a hundred times as large as what "
    "comes before it, and others' were not: as with weights that are initialised with a wrong scale. A softmax or a "
    "sigmoid behind it is saturated from the start, the training goes on and learns little. A warning from 500 times "
    "on in the midst of the model, of a layer that is trained, where no output before it comes near.",
    check=check,
    thresholds=(
        Threshold("factor", FACTOR, "times", "As large as what comes before it, and as that of half of the layers."),
    ),
)
