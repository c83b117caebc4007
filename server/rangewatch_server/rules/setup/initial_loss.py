"""The first loss is far above that of a model that knows nothing: the logits, or the inputs, are far too large from the
start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from rangewatch.wire.events import LossFunction
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.activations.initial_gain import FACTOR, LINEAR, Gain, gains_of
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.inputs import LARGE_INPUT, largest_input, normalise, normalises_first, usual_input
from rangewatch_server.rules.loss.series import first_and_last, loss_name
from rangewatch_server.rules.phrases import loss_called, module_code, module_path, place, the
from rangewatch_server.rules.recent import only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds
from rangewatch_server.rules.setup.squares_of_outputs import squares_of_outputs

FIRST = 3
"""Steps in which the first loss is looked for."""

ABOVE = 8.0
"""By how much it must be above that of chance, too: losses of a few classes are small."""

GAIN = 6.0
"""How many times as large as what comes before it the output of the last layer must be: usual is about 1."""


LARGE_TARGET = 100.0
"""Root mean square of targets from which on they were not normalised: outputs begin at about 1."""

LARGE_OUTPUT, LEFT = 30.0, 10.0
"""Times 1, and times the targets, from which on outputs begin too large; and times the targets' square that the loss
must be after `LONG` steps: what is learned in some steps does no harm."""

SEEN_OUTPUT = 0.3
"""Part of such outputs that the largest element of the model's own must be."""

AS_FAR = 0.3
"""Part of the first loss of outputs of 0 that it must be: a last bias may begin at the targets' mean."""

BEHIND, TARGET_RMS = 4.0, "target_rms"
"""Times the targets' square, and 1, that such a loss must begin at, where inputs were not normalised."""

LONG, FEW, STAYED = 128, 32, 0.3
"""Steps in which a loss falls that is to fall, how many a median is taken of, and the part of it that must be left."""


FAR, EACH, FEWEST = 20.0, 2.0, 3
"""Times chance that the first loss must be, and how many times as large as what comes before it each linear layer's
output is (median of so many layers and more): all weights are too large then."""


HIGH, LEAST, MEDIAN, LAYERS = 2.0, 2.0, 4.0, 4
"""Or so many times chance alone, as of a few classes behind norms, where every one of so many layers and more, and
their median, are so many times as large: of layers as they are initialised it is 0.5 to 1.5. Only while the loss is no
better than chance."""

STILL = 64
"""Steps after which that is asked."""

MOST_LAYERS, FIRST_LOSS, LEFT_OVER = 0.75, 1e3, 100.0
"""Part of the layers of which it is so where the loss is of no function that says how high it begins: one beside
another is behind that in call order; the first loss, and what must be left of it after `LONG` steps."""


class Logits(msgspec.Struct, frozen=True):
    """The output over all classes at the first step, and what comes before it. `weight`: of the linear layer that makes
    it, or the table that code of the model multiplies with."""

    tensor: int
    amax: float
    gain: float
    weight: str


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding of the first loss, of targets or of outputs."""
    start = evidence.start
    if not evidence.began_fresh:
        return
    known, name = next((each for _, each in evidence.details(LossFunction)), None), loss_name(evidence)
    if name is None:
        return
    if known is None:
        yield from _of_any_loss(evidence, name, start)
        yield from squares_of_outputs(evidence, name, start)
        return
    if known.op == "mse" and 0 < known.target_rms < LARGE_TARGET:
        yield from _of_outputs(evidence, known.target_rms, name, start)
        yield from _of_inputs_of_squares(evidence, known.target_rms, name, start)
    if known.target_rms >= LARGE_TARGET and _begins_far_off(evidence, known.target_rms, name, start):
        yield from _of_targets(evidence, known.target_rms, start)
    if known.classes < 2:
        return
    values = evidence.series(name, start, start + FIRST)
    values, chance = values[np.isfinite(values)], float(np.log(known.classes))
    least = max(limits["factor"] * chance, chance + ABOVE)
    if not len(values) or not values[0] >= min(least, HIGH * chance):
        return
    gains = gains_of(evidence, start)
    factors = [each.factor for each in gains]
    usual = float(np.median(factors)) if len(gains) >= FEWEST else 0.0
    if values[0] < least:
        medians = first_and_last(evidence, FEW) if evidence.whole_stop - start >= STILL else None
        is_behind = medians is not None and medians[1] >= chance
        if is_behind and len(gains) >= LAYERS and min(factors) >= LEAST and usual >= MEDIAN:
            yield from _of_weights(evidence, gains, usual, name, float(values[0]), chance, known.classes, start)
        return
    size = largest_input(evidence, start, start + FIRST)
    if size >= LARGE_INPUT:
        yield _of_inputs(evidence, size, name, float(values[0]), chance, known.classes, start)
        return
    logits = _logits(evidence, start, known.classes if known.op == "nll" else 0)
    if logits is not None and logits.gain >= GAIN and 2 * logits.amax >= values[0] - chance:
        yield _finding(evidence, logits, name, float(values[0]), chance, known.classes, start)
        return
    if values[0] >= FAR * chance and usual >= EACH:
        yield from _of_weights(evidence, gains, usual, name, float(values[0]), chance, known.classes, start)


def _of_inputs(
    evidence: Evidence, size: float, name: str, loss: float, chance: float, classes: int, step: int
) -> Finding:
    rank = only_rank(evidence)
    return Finding(
        rank=rank, step=step, subject="initial loss",
        summary=f"{place(step, rank)}: {loss_called(name)} begins at {loss:.4g}, where a model that knows nothing has "
        f"ln({classes}) = {chance:.3g}: its inputs are far too large, {size:.3g} in root mean square.",
        evidence=(
            "Layers are initialised for inputs of about 1: logits are as many times too large as inputs are.",
            "Cause (likely): the data, which were not normalised. Against that: the model may normalise them itself.",
            "What would decide: print mean and deviation of a batch as the model is given it.",
        ),
        remedy=(normalise("a sample of the inputs of the first steps, and the first loss, before any update"),),
        facts={"loss": loss, "chance": chance, "classes": classes, "input_rms": size, "cause_class": "data"},
    )  # fmt: skip


def _of_inputs_of_squares(evidence: Evidence, target: float, name: str, step: int) -> Iterable[Finding]:
    """Of squared differences that were far above the targets at first, of inputs that are far too large, and are still
    no better than those of a model that always gives 0."""
    values, medians = evidence.series(name, step, step + FIRST), first_and_last(evidence, FEW)
    values, size = values[np.isfinite(values)], usual_input(evidence, step, step + FIRST)
    if size < LARGE_INPUT or not len(values) or evidence.whole_stop - step < LONG or medians is None:
        return
    stop = evidence.whole_stop
    known = evidence.series(TARGET_RMS, max(step, stop - FEW), stop) if evidence.has_series(TARGET_RMS) else np.zeros(0)
    largest = float(np.max(np.r_[target, known[np.isfinite(known)]]))  # as those of values that grow
    if values[0] < BEHIND * max(largest, 1.0) ** 2 or medians[1] < largest**2 or normalises_first(evidence):
        return
    if _own_output(evidence, step) < SEEN_OUTPUT * np.sqrt(values[0]):
        return  # what is logged is not what is trained on
    rank = only_rank(evidence)
    yield Finding(
        rank=rank, step=step, subject="inputs of squares",
        summary=f"{place(step, rank)}: {loss_called(name)} begins at {values[0]:.4g} and is {medians[1]:.4g} by now, "
        f"where a model that always gives 0 has {target**2:.3g}: its inputs are far too large, {size:.3g} in root mean "
        "square.",
        evidence=(
            "Layers are initialised for inputs of about 1: outputs are as many times too large as inputs are, and what "
            "is learned first is to make them smaller.",
            f"The loss is the mean of squared differences, by its graph; medians of {FEW} values, and a sample of the "
            "targets.",
            "Cause (likely): the data, which were not normalised. Against that: the model may normalise them itself.",
            "What would decide: print mean and deviation of a batch as the model is given it.",
        ),
        remedy=(normalise("a sample of the inputs of the first steps, and the loss since", "bytes by 127.5, less 1"),),
        facts={"loss": medians[1], "target_rms": target, "input_rms": size, "cause_class": "data"},
    )  # fmt: skip


def _of_weights(
    evidence: Evidence, gains: Sequence[Gain], usual: float, name: str, loss: float, chance: float, classes: int,
    step: int,
) -> Iterable[Finding]:  # fmt: skip
    begins = f"begins at {loss:.4g}, where a model that knows nothing has ln({classes}) = {chance:.3g}"
    known = {"loss": loss, "chance": chance, "classes": classes}
    yield _weights(evidence, gains, usual, f"{loss_called(name)} {begins}", step, only_rank(evidence), known)


def _weights(
    evidence: Evidence, gains: Sequence[Gain], usual: float, text: str, step: int, rank: int | None,
    known: Mapping[str, object],
) -> Finding:  # fmt: skip
    """`text`: how the loss begins."""
    entry = evidence.tensors.entries[gains[0].tensor]
    return Finding(
        rank=rank, step=step, tensor=entry.fqn, kind="output", subject="initial loss",
        summary=f"{place(step, rank)}: {text}: layers make what they are given {usual:.2g} times as large.",
        evidence=(
            f"Of {len(gains)} linear layers the output was {usual:.2g} times as large as what comes before it, in the "
            "median, at the first step; usual is about as large. From layer to layer that is multiplied.",
            "Cause (likely): the weights as they were initialised, such as normal_() without its std. Against that: "
            "weights that were loaded for other inputs.",
            "What would decide: print the deviation of each layer's weight; usual is one over the root of its inputs.",
        ),
        remedy=(
            Remedy(
                "Give the initialisation a smaller std: about one over the root of a layer's inputs, or 0.02.",
                "for module in model.modules():\n"
                "    if isinstance(module, torch.nn.Linear):\n"
                "        torch.nn.init.normal_(module.weight, std=module.in_features**-0.5)",
                "the outputs of the first step, before any update",
            ),
        ),
        facts={**known, "gain": usual, "cause_class": "weight"},
    )  # fmt: skip


def _begins_far_off(evidence: Evidence, size: float, name: str, start: int) -> bool:
    """Whether the first loss is about the targets' square; or their size, as that of huber_loss is, which comes to no
    more than a few times that."""
    values = evidence.series(name, start, start + FIRST)
    values = values[np.isfinite(values)]
    return bool(len(values)) and bool(values[0] >= AS_FAR * size**2 or AS_FAR * size <= values[0] <= size / AS_FAR)


def _of_targets(evidence: Evidence, size: float, step: int) -> Iterable[Finding]:
    medians = first_and_last(evidence, FEW)
    if evidence.whole_stop < LONG or medians is None or not medians[1] >= STAYED * medians[0] > 0:
        return
    rank = only_rank(evidence)
    yield Finding(
        rank=rank, step=step, subject="targets",
        summary=f"{place(step, rank)}: targets are far too large, {size:.3g} in root mean square, and the loss has "
        f"hardly fallen: from {medians[0]:.3g} to {medians[1]:.3g}.",
        evidence=(
            "Outputs begin at about 1. An optimizer that moves weights by a little each step takes very long to come "
            "to such numbers, and one that goes by the gradients' size makes steps that are far too large.",
            f"The loss is the mean of squared differences, by its graph; medians of {FEW} values.",
            "Cause (likely): the data: targets that were not normalised.",
            "What would decide: print mean and deviation of the targets.",
        ),
        remedy=(
            Remedy(
                "Train on targets less their mean, over their deviation, and turn outputs back where they are used; or "
                "begin with the last layer's bias at the mean.",
                "def normalised(target, mean, deviation):  # of the training data\n"
                "    return (target - mean) / deviation",
                "a sample of the targets of a first step",
            ),
        ),
        facts={"target_rms": size, "loss": medians[1], "cause_class": "data"},
    )  # fmt: skip


def _of_outputs(evidence: Evidence, size: float, name: str, step: int) -> Iterable[Finding]:
    """Of squared differences that are, at first and still, far above targets and above what outputs begin with."""
    values = evidence.series(name, step, step + FIRST)
    values, medians = values[np.isfinite(values)], first_and_last(evidence, FEW)
    if (
        not len(values)
        or evidence.whole_stop - step < LONG
        or medians is None
        or largest_input(evidence, step, step + FIRST) >= LARGE_INPUT
    ):
        return
    outputs = float(np.sqrt(max(values[0], 0.0)))
    if not outputs >= LARGE_OUTPUT * max(size, 1.0) or not medians[1] >= LEFT * size**2:
        return
    if _own_output(evidence, step) < SEEN_OUTPUT * outputs:
        return  # what is logged is not what is trained on: it may be in other units
    rank, odd = only_rank(evidence), _odd_layer(evidence, step)
    yield Finding(
        rank=rank, step=step, subject="outputs", tensor=odd, kind=None if odd is None else "output",
        summary=f"{place(step, rank)}: {loss_called(name)} begins at {values[0]:.4g}, so that outputs are about "
        f"{outputs:.3g}, where targets are {size:.3g} in root mean square; and it is {medians[1]:.4g} by now.",
        evidence=(
            "Of usual inputs a layer as it is initialised makes outputs of about 1. The loss is the mean of squared "
            "differences, by its graph.",
            *(
                [
                    f"The output of {odd} is more than {FACTOR:.0f} times as large as what comes before it, and of "
                    "other layers it is not."
                ]
                if odd is not None else []
            ),
            f"Cause (likely): the weights {'of ' + odd + ' ' if odd is not None else ''}as they were initialised, such "
            "as torch.randn() without a factor, which makes what each layer is given as many times larger as the root "
            "of its inputs. Against that: weights that were loaded for other inputs.",
            "What would decide: print the deviation of each layer's weight; usual is one over the root of its inputs.",
        ),
        remedy=(
            Remedy(
                "Give the initialisation a smaller deviation: about one over the root of a layer's inputs.",
                "def drawn(inputs, outputs):\n    return torch.randn(outputs, inputs) * inputs**-0.5",
                "the first loss, before any update, and a sample of the targets",
            ),
        ),
        facts={"loss": float(values[0]), "target_rms": size, "output_rms": outputs, "cause_class": "weight"},
    )  # fmt: skip


def _odd_layer(evidence: Evidence, step: int) -> str | None:
    """The layer that alone makes what it is given far larger at first."""
    gains = gains_of(evidence, step)
    odd = [each for each in gains if each.factor >= FACTOR]
    is_usual = len(gains) >= FEWEST and float(np.median([each.factor for each in gains])) < EACH
    return evidence.tensors.entries[odd[0].tensor].fqn if len(odd) == 1 and is_usual else None


def _of_any_loss(evidence: Evidence, name: str, step: int) -> Iterable[Finding]:
    """Of a loss of any kind that begins in the thousands, where nearly all layers make what they are given larger."""
    values, medians = evidence.series(name, step, step + FIRST), first_and_last(evidence, FEW)
    values, gains = values[np.isfinite(values)], gains_of(evidence, step)
    factors = np.array([each.factor for each in gains])
    if evidence.whole_stop - step < LONG or medians is None or len(factors) < LAYERS or not len(values):
        return
    if values[0] < FIRST_LOSS or medians[1] < LEFT_OVER or largest_input(evidence, step, step + FIRST) >= LARGE_INPUT:
        return
    if np.mean(factors >= LEAST) < MOST_LAYERS or np.median(factors) < MEDIAN:
        return
    rank, usual = only_rank(evidence), float(np.median(factors))
    begins = f"begins at {values[0]:.4g} and is {medians[1]:.4g} by now"
    yield _weights(evidence, gains, usual, f"{loss_called(name)} {begins}", step, rank, {"loss": float(values[0])})


def _own_output(evidence: Evidence, step: int) -> float:
    """The largest magnitude of the model's own output in the first steps; Inf where it is not recorded."""
    entries = evidence.tensors.entries
    outputs = np.array([each for each in tensors_of(evidence, "output").tolist() if not entries[each].fqn], np.int64)
    if not len(outputs):
        return float("inf")
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, step, step + FIRST, ("amax",), outputs)
    return float(np.asarray(block.columns["amax"], np.float64).max(initial=0.0))


def _logits(evidence: Evidence, start: int, classes: int) -> Logits | None:
    """Of the last such layer in call order; `classes` 0: of any width."""
    outputs, entries = tensors_of(evidence, "output"), evidence.tensors.entries
    if not len(outputs):
        return None
    order = outputs[np.argsort(evidence.tensors.position[outputs], kind="stable")].tolist()
    layers = [
        at
        for at, each in enumerate(order)
        if at and entries[each].module in LINEAR and (not classes or classes in entries[each].shape[1:])
    ]
    at = layers[-1] if layers else _by_code(evidence, order, classes)
    if at is None:
        return None
    pair = order[at - 1], order[at]
    weight = f"{entries[pair[1]].fqn}.weight" if layers else _table(evidence, classes, entries[pair[0]].shape[-1])
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, start, start + 1, ("amax",), np.sort(pair))
    amax = dict(zip(np.sort(pair).tolist(), np.asarray(block.columns["amax"], np.float64)[:, 0].tolist(), strict=True))
    before, last = (amax[each] for each in pair)
    return Logits(pair[1], last, last / before, weight) if weight and before > 0 else None


def _by_code(evidence: Evidence, order: Sequence[int], classes: int) -> int | None:
    """The first place in call order of an output over all classes, where the model has no linear layer of that width:
    code of its forward multiplies with a table, as with that of its embedding."""
    entries = evidence.tensors.entries
    is_over = [classes in entries[each].shape[1:] for each in order]
    at = is_over.index(True) if classes and True in is_over else 0
    return at if at and entries[order[at - 1]].shape else None


def _table(evidence: Evidence, classes: int, width: int) -> str:
    """The embedding that has a row of that width for each class; "": there is none, or there are several. Of another
    parameter cosines may be taken, times a factor that is meant to make the first loss high."""
    entries = evidence.tensors.entries
    embeddings = {each.fqn for each in entries if each.kind == "output" and "Embedding" in each.module}
    named = {
        each.fqn
        for each in entries
        if each.kind in ("grad", "weight") and tuple(each.shape) == (classes, width)
        and each.fqn.rpartition(".")[0] in embeddings
    }  # fmt: skip
    return named.pop() if len(named) == 1 else ""


def _finding(
    evidence: Evidence, logits: Logits, name: str, loss: float, chance: float, classes: int, step: int
) -> Finding:
    entry, rank = evidence.tensors.entries[logits.tensor], only_rank(evidence)
    weight = logits.weight
    layer = module_code(module_path(evidence.tensors.entries, weight.rpartition(".")[0]))
    code = f"{layer}.{weight.rpartition('.')[2]}"
    return Finding(
        rank=rank, step=step, tensor=entry.fqn, kind="output", subject="initial loss",
        summary=f"{place(step, rank)}: {loss_called(name)} begins at {loss:.4g}, where a model that knows nothing has "
        f"ln({classes}) = {chance:.3g}: the logits of {entry.fqn or 'the model'} are far too large from the start.",
        evidence=(
            f"{the(entry)} was up to {logits.amax:.4g} in the first step, {logits.gain:.3g} times what comes before "
            "it; "
            "usual is about as large.".replace("the output", "The output", 1),
            f"The loss is the mean of a cross entropy over {classes} classes, by its graph. Usual logits of an "
            "untrained "
            "model are about 1, and then it is that of chance.",
            f"Cause (likely): {weight} as it was initialised or loaded; where it is tied to an embedding, that "
            "embedding's. Against that: a head of other classes that was loaded begins high as well.",
            f"What would decide: print the deviation of {weight}; usual is 0.02, or about 1 / sqrt(its inputs).",
        ),
        remedy=(
            Remedy(
                f"Initialise {weight} with a smaller deviation, such as 0.02; torch's own start of an embedding has 1, "
                "which is too large for one that is tied to the output.",
                f"torch.nn.init.normal_({code}, std=0.02)  # before training",
                "the first loss, before any update, and the logits it is made of",
            ),
        ),
        facts={
            "loss": loss, "chance": chance, "classes": classes, "amax": logits.amax, "gain": logits.gain,
            "where": weight, "cause_class": "weight",
        },
    )  # fmt: skip


RULE = Rule(
    name="initial_loss",
    title="Logits, inputs or targets begin far too large",
    severity="warning",
    explanation="A classifier or language model that knows nothing has a cross entropy of ln(classes). Where the first "
    "loss is several times that, the model is sure of what is wrong: its logits are far too large, as with an "
    "embedding of deviation 1 that is tied to the output, or with inputs that were not normalised. The training goes "
    "on, and spends its first part on shrinking them. Needs a loss that is the mean of torch's cross entropy alone, "
    "and the output of a linear layer or a table right before it, or inputs of more than 30. Of squared differences: "
    "targets of more than 100, and a loss that has hardly fallen, or inputs of more than 30, and one that is no better "
    "than that of outputs of 0. Of a loss by hand: inputs of more than 30, and a loss that is the mean square of the "
    "model's own outputs, at first and still, as where targets are nothing beside them.",
    check=check,
    thresholds=(Threshold("factor", 4.0, "times ln(classes)", "From here on a first loss is too high."),),
    explains=("initial_gain",),
)
