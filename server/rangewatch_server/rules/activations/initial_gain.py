"""Worth knowing, or wrong: a layer whose output is far larger than what comes before it, since the first step; or all
layers, where a tanh behind each hides how large they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from rangewatch.wire.events import LossFunction
from rangewatch.wire.records import TensorEntry
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import Array, Evidence
from rangewatch_server.rules.inputs import LARGE_INPUT, largest_input
from rangewatch_server.rules.loss.series import TARGETS, first_and_last, loss_name
from rangewatch_server.rules.phrases import few_of, loss_called, module_code, module_path, place, the
from rangewatch_server.rules.recent import FEW_RANKS, only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

FIRST = 4
"""First steps of a run that are looked at: later ones are of trained weights."""

LINEAR = ("Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Conv1D")
"""Classes whose output is a sum of inputs times weights: as they are usually initialised it is about as large."""

FEWEST = 3
"""Such layers that are needed, to say what is usual in the model."""


class Gain(msgspec.Struct, frozen=True):
    """Output `tensor` is `factor` times as large as the output before it in call order, which is `before`, and `above`
    times as the largest of all before it: a branch may begin behind the small output of another one."""

    tensor: int
    before: int
    factor: float
    above: float


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first layer, and how many more there are; or the layers that a tanh is shut by."""
    high, usual, count = far(evidence, limits["factor"])
    if high:
        yield _finding(evidence, high, usual, count, evidence.start, is_wrong=_is_wrong(evidence, high[0]))
        return
    shut = _shut(evidence)
    if len(shut) >= SHUT_LAYERS and _is_no_better(evidence):
        yield _of_shut(evidence, shut)


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
    if not evidence.began_fresh:
        return [], 0.0, 0
    gains = gains_of(evidence, evidence.start)
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
    name = the(entry)
    return Finding(
        severity="warning" if is_wrong else "",
        rank=rank, step=step, tensor=entry.fqn, kind="output", subject="gain",
        summary=f"{place(step, rank)}: {name} is {first.factor:.3g} times as large as {the(before)} before it, since "
        "the first step: its weights may be initialised far too large.",
        evidence=(
            f"Of {count} linear layers half are {usual:.3g} times as large as what comes before them, or less.",
            *([f"So are those of {len(more)} more: {few_of(more)}."] if more else []),
            f"Cause ({'likely' if is_wrong else 'possible'}): the weight of that layer, as it was initialised or "
            "loaded. Against that: code between the two, such as a factor or another branch, makes what it is given as "
            "large.",
            f"What would decide: print the deviation of {entry.fqn}.weight; usual is about 1 / sqrt(its inputs).",
        ),
        remedy=(remedy(evidence, entry.fqn, "its output was so large before any update, or after the first"),),
        facts={"factor": first.factor, "usual": usual, "layers": len(high), "of": count, "cause_class": "weight"},
    )  # fmt: skip


BOUNDED, REACHED = 1.001, 0.99
"""The most that an output of a tanh may be, with rounding, and that the largest of thousands is at least."""

SHUT_SUMS, SHUT_OUTPUT = 5.0, 0.95
"""Root mean squares of the sums before a tanh, and behind it, from which on it is shut: with a usual gain they are 1 or
so and 0.6. A sine's is 0.7, however large its argument."""

LEAST_SLOPE = 0.005
"""Mean slope of torch's own Tanh below which `saturated_activation` says so; and a sign, which is meant, has none."""

SHUT_LAYERS = 2
"""Such layers that are needed, each given no more than 1 itself: then it is their weights."""

LONG, FEW = 128, 32
"""Steps after which the loss is asked, and how many a median is taken of."""

NO_BETTER, STAYED = 0.95, 0.8
"""Part of the loss of chance, and of the first loss where chance is not known, from which on nothing was learned."""


class Shut(msgspec.Struct, frozen=True):
    """A linear layer that is given no more than 1, the root mean square of its `sums`, and that `behind` them."""

    tensor: int
    sums: float
    behind: float


def _shut(evidence: Evidence) -> list[Shut]:
    """In call order, those that are so at the first step that is measured; none where other layers are not."""
    outputs = tensors_of(evidence, "output")
    names = ("call_count", "amax", "full_numel", "sum_sq")
    known = set(evidence.run.names().fill[RANGES])
    if not evidence.began_fresh or not len(outputs) or not known.issuperset(names):
        return []
    stop = min(evidence.start + FIRST, evidence.whole_stop)
    if stop <= evidence.start or largest_input(evidence, evidence.start, stop) >= LARGE_INPUT:
        return []
    block = evidence.run.slice(RANGES, list(evidence.ranks[:FEW_RANKS]), 0, evidence.start, stop, names, outputs)
    calls, amax, numel, squares = (np.asarray(block.columns[each], np.float64) for each in names)
    is_there = (calls > 0) & (numel > 0) & np.isfinite(squares) & np.isfinite(amax)
    at = int(np.argmax(is_there.any(axis=0)))
    rms = np.sqrt(np.where(is_there, squares, 0.0)[:, at] / np.maximum(numel[:, at], 1.0))
    position, entries = evidence.tensors.position, evidence.tensors.entries
    order = sorted(np.flatnonzero(is_there[:, at]).tolist(), key=lambda row: int(position[outputs[row]]))
    trained = {entries[int(each)].fqn.rpartition(".")[0] for each in tensors_of(evidence, "grad")}
    found, others = [], 0
    for before, row, behind in zip(order, order[1:], order[2:], strict=False):
        entry, size = entries[int(outputs[row])], amax[behind, at]
        is_given = 0 < amax[before, at] <= BOUNDED and entry.module in LINEAR and entry.fqn in trained
        if not is_given or not REACHED <= size <= BOUNDED:
            continue
        slope = 1.0 - float(rms[behind]) ** 2
        is_said = slope <= 0 or (entries[int(outputs[behind])].module == "Tanh" and slope < LEAST_SLOPE)
        if rms[row] >= SHUT_SUMS and rms[behind] >= SHUT_OUTPUT and not is_said:
            found.append(Shut(int(outputs[row]), float(rms[row]), float(rms[behind])))
        else:
            others += 1
    return found if others < len(found) else []


def _is_no_better(evidence: Evidence) -> bool:
    """Whether the loss is no less than that of a model that has learned nothing, or has hardly fallen."""
    medians, step = first_and_last(evidence, FEW), evidence.whole_stop
    if medians is None or step - evidence.start < LONG:
        return False
    first, last = medians
    known = next((each for _, each in evidence.details(LossFunction)), None)
    if known is not None and known.op == "mse" and known.target_rms > 0:
        sizes = evidence.series(TARGETS, step - FEW, step) if evidence.has_series(TARGETS) else np.zeros(0)
        return last >= float(np.max(np.r_[known.target_rms, sizes[np.isfinite(sizes)]])) ** 2
    if known is not None and known.classes >= 2:
        return last >= NO_BETTER * float(np.log(known.classes))
    return first > 0 and last >= STAYED * first


def _of_shut(evidence: Evidence, shut: Sequence[Shut]) -> Finding:
    rank, step, entries = only_rank(evidence), evidence.start, evidence.tensors.entries
    entry, sums = entries[shut[0].tensor], float(np.median([each.sums for each in shut]))
    behind, more = float(np.median([each.behind for each in shut])), [entries[each.tensor].fqn for each in shut[1:]]
    medians, name = first_and_last(evidence, FEW) or (0.0, 0.0), loss_name(evidence) or "loss"
    return Finding(
        severity="warning",
        rank=rank, step=step, tensor=entry.fqn, kind="output", subject="gain",
        summary=f"{place(step, rank)}: layers begin saturated: {the(entry)} is {sums:.3g} in root mean square, of "
        f"inputs of at most 1, and what comes behind it is at -1 or 1, since the first step: its weights, and those of "
        f"{len(more)} more layer{'s' if len(more) > 1 else ''}, are initialised too large.",
        evidence=(
            f"Behind these layers the root mean square is {behind:.3f}, of at most 1: the mean slope of a tanh is "
            f"{1 - behind**2:.2g} there. With weights of a usual size sums are about 1.",
            f"The others: {few_of(more)}.",
            f"Medians of {FEW} values: {loss_called(name)} was {medians[0]:.4g} at first and is {medians[1]:.4g} by "
            "now, no less than it is where nothing was learned.",
            "Cause (likely): the weights as they were initialised, such as a gain that is too large. Against that: "
            "weights that were loaded.",
            f"What would decide: print the deviation of {entry.fqn}.weight; usual is about 1 / sqrt(its inputs).",
        ),
        remedy=(
            remedy(evidence, entry.fqn, "sums and what comes behind them were measured before any update, or after the "
                   "first", "torch.nn.init.calculate_gain('tanh'), which is 5/3, is the usual gain before a tanh. "),
        ),
        facts={"sums": sums, "behind": behind, "layers": len(shut), "since_step": step, "cause_class": "weight"},
    )  # fmt: skip


def remedy(evidence: Evidence, fqn: str, because: str, more: str = "") -> Remedy:
    """Against the weights that the layer `fqn` begins with. `more`: sentences, each with a space behind it."""
    return Remedy(
        f"Look at how the weights of {fqn} are initialised, and scale them down where it is not meant: a deviation of "
        f"about 1 / sqrt(its inputs) keeps what it gives as large as what it is given. {more}".rstrip(),
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
    "on in the midst of the model, of a layer that is trained, where no output before it comes near. A warning, too, "
    "where several layers are given no more than 1, their sums are 5 and more, and a tanh behind each is shut; once "
    "the loss has stayed no better than where nothing is learned.",
    check=check,
    thresholds=(
        Threshold("factor", FACTOR, "times", "As large as what comes before it, and as that of half of the layers."),
    ),
)
