"""Why a loss was NaN or Inf at a step at which all outputs and gradients that were recorded are finite.

No tensor is to be looked for then: the loss itself became so, of its targets, of none of them, or of the range of its
dtype; and gradients, which are computed from the same numbers, say which.
"""

from __future__ import annotations

import msgspec
import numpy as np

from rangewatch.wire.events import LossGraph, SavedValue
from rangewatch.wire.records import TensorEntry
from rangewatch_server.numerics.headroom import max_finite_log2
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.inputs import largest_input, normalise
from rangewatch_server.rules.loss.spike import cause as spike_cause
from rangewatch_server.rules.loss.spike.bands import activations, risers
from rangewatch_server.rules.loss.spike.cause import Explanation
from rangewatch_server.rules.nonfinite import operations
from rangewatch_server.rules.nonfinite.causes import BLOWN, BLOWN_BITS, BY_TERM, Candidate, blown_text, ratio_of
from rangewatch_server.rules.nonfinite.code_snippets import CLIP, LOSS
from rangewatch_server.rules.phrases import capital, the
from rangewatch_server.rules.recent import tensors_of
from rangewatch_server.rules.rule import Remedy

GRADIENTS = ("grad", "reduced_grad", "grad_output")
"""The first of these kinds that was recorded at the step is judged."""

TARGET_BITS = 10.0
"""Bits by which gradients must be above all before them where targets are so large that the loss is Inf: the gradient
of a square is as its root.
"""

FAR_TOO_LARGE = 1e3
"""Root mean square of inputs by which the loss of the first steps is beyond its range."""

AT_FIRST = 8
"""First steps, and last ones, whose losses say how far it has grown since it began."""

HIGH = 4_096.0
"""Of a loss: a sum of few such is beyond the range of float16."""

HALF_PRECISION = ("float16", "bfloat16")

FAR_BITS = 20.0
"""Bits by which the sum of squares of all that the last module gave must be below the limit, so that no sum of it in
the loss can have passed it.
"""


def explained(evidence: Evidence, name: str, step: int, rank: int, *, is_nan: bool) -> Explanation | None:
    """None where it is not known that all was finite: something was not, or no gradient was recorded."""
    gradients = _finite_gradients(evidence, step, rank)
    if gradients is None:
        return None
    rose = risers(evidence, gradients, step)
    finite = "All outputs and gradients that were recorded at that step are finite: the loss itself became so."
    if is_nan and not _amax(evidence, gradients, step, rank).any():
        return _no_target(step, finite, rank)
    if risers(evidence, activations(evidence), step):
        known = spike_cause.explained(evidence, name, step, float(np.nan))
        if known.cause:
            text = f"{finite} What it is computed from had grown so far that a sum or square of it is not in its range."
            return msgspec.structs.replace(known, sentences=(text, *known.sentences), rank=rank)
        blown = ratio_of(evidence, name, step, rank)
        if blown is not None and blown[0] >= BLOWN:
            return _blown(blown_text(*blown[1:]), finite, rank)
    if not is_nan and rose and max(each.bits for each in rose) >= TARGET_BITS:
        first = max(rose, key=lambda each: each.bits)
        return _targets(evidence.tensors.entries[first.tensor], first.bits, step, finite, rank)
    made = _operation(evidence, step, rank)
    if made is not None:
        return _made(made, finite, rank)
    if (grown := _grown_since_it_began(evidence, name, step, rank)) is not None:
        return _blown(grown, finite, rank)
    is_first = step - evidence.start < AT_FIRST
    if is_first and not is_nan and (large := _beyond_squares(evidence, step, rank)) is not None:
        return _of_first_steps(evidence, large, step, finite, rank)
    return _range(evidence, step, finite, rank, is_nan=is_nan)


def _beyond_squares(evidence: Evidence, step: int, rank: int) -> str | None:
    """A sentence, where the square of the largest output alone is beyond the range of its dtype; not of float16, where
    that is usual from 256 on."""
    outputs = activations(evidence)
    amax = _amax(evidence, outputs, step, rank) if len(outputs) else np.zeros(0)
    if not len(amax) or not amax.max() > 0:
        return None
    entry, largest = evidence.tensors.entries[int(outputs[amax.argmax()])], float(amax.max())
    if entry.dtype == "float16" or 2 * np.log2(largest) <= float(max_finite_log2([entry.dtype])[0]):
        return None
    return f"{capital(the(entry))} was {largest:.3g}, whose square is beyond the range of {entry.dtype}."


def _of_first_steps(evidence: Evidence, large: str, step: int, finite: str, rank: int) -> Explanation:
    """Before much is usual: of inputs that were never brought to about 1, or of updates."""
    size = largest_input(evidence, evidence.start, step + 1, rank)
    if size < FAR_TOO_LARGE:
        return _blown(large, finite, rank)
    text = (
        f"the data, which were not normalised. What the model is given is {size:.3g} in root mean square. {large} "
        "Layers are initialised for inputs of about 1: outputs are as many times too large as inputs are, and an "
        "update by the gradients of those is by far more."
    )
    remedy = normalise(more="of a time, what is left since a day of the data's own, in days or years")
    test = "Print mean and deviation of each column of a batch as the model is given it."
    return _of(Candidate("data", 0.86, (text,)), test, (finite,), (remedy,), rank)


def _grown_since_it_began(evidence: Evidence, name: str, step: int, rank: int) -> str | None:
    """Of a loss that has grown for so long that what is large is usual by now. Some times as large is no news: that of
    an adversary or a policy begins near 0."""
    begun = evidence.series(name, evidence.start, min(step, evidence.start + AT_FIRST), rank)
    last = evidence.series(name, max(evidence.start, step - AT_FIRST), step, rank)
    begun, last = (np.abs(each[np.isfinite(each)]) for each in (begun, last))
    times = BLOWN if len(last) and last[-1] >= HIGH else 2.0**BLOWN_BITS
    if not len(begun) or not len(last) or not last[-1] >= times * np.median(begun) > 0:
        return None
    return f"The loss had blown up before: {last[-1]:.3g} where it had been {np.median(begun):.3g} at first."


def _finite_gradients(evidence: Evidence, step: int, rank: int) -> np.ndarray | None:
    """Ordinals of those of the step, where nothing that was recorded at it held NaN or Inf that is not by design."""
    every = np.arange(len(evidence.tensors.entries))
    if not len(every):
        return None
    names = ("call_count", "nan_count", "inf_count")
    block = evidence.run.slice(RANGES, [rank], 0, step, step + 1, names, every)
    calls, nans, infs = (np.asarray(block.columns[each], np.float64)[:, 0] for each in names)
    if (nans + infs > 0).any():
        return None
    for kind in GRADIENTS:
        there = tensors_of(evidence, kind)
        there = there[calls[there] > 0] if len(there) else there
        if len(there):
            return there
    return None


def _amax(evidence: Evidence, tensors: np.ndarray, step: int, rank: int) -> np.ndarray:
    block = evidence.run.slice(RANGES, [rank], 0, step, step + 1, ("amax",), tensors)
    return np.asarray(block.columns["amax"], np.float64)[:, 0]


def _of(
    candidate: Candidate, test: str, sentences: tuple[str, ...], remedies: tuple[Remedy, ...], rank: int
) -> Explanation:
    said = (*sentences, f"Cause ({candidate.sureness}): {' '.join(candidate.supports)}", *candidate.against)
    return Explanation(
        candidate.cause, candidate.sureness, (*said, f"What would decide: {test}"), remedies, None, None, rank,
        {candidate.cause: candidate.weight},
    )  # fmt: skip


def _no_target(step: int, finite: str, rank: int) -> Explanation:
    text = (
        "all gradients are exactly 0 while the loss is NaN: none of its targets counted, and a mean over none is 0 / 0."
    )
    remedies = (
        Remedy(
            f"Look at the targets of the batch of step {step}: as it seems all are left out (padding, ignore_index, "
            "weights of 0). Leave out such a batch, or divide by 1 where none counts.",
            LOSS, "all gradients are 0 while the loss is NaN",
        ),
    )  # fmt: skip
    test = f"Count the targets of the batch of step {step} that are not ignored."
    return _of(Candidate("data", 0.88, (text,)), test, (finite,), remedies, rank)


def _blown(text: str, finite: str, rank: int) -> Explanation:
    said = f"{finite} What it is computed from had grown so far that a sum or square of it is not in its range."
    because = f"{text[0].lower()}{text[1:].rstrip('.')}"
    remedies = (
        Remedy(
            "Go back to a checkpoint from before the loss rose, and lower the learning rate there.",
            "for group in optimizer.param_groups:\n    group['lr'] *= 0.1",
            because,
        ),
        Remedy("Clip the gradients, so that one step moves the weights by so much at most.", CLIP, because),
    )
    test = "Go back to a checkpoint from before it and train on with a tenth of the learning rate."
    return _of(Candidate("learning_rate", 0.8, (f"too large updates. {text}",)), test, (said,), remedies, rank)


def _targets(entry: TensorEntry, bits: float, step: int, finite: str, rank: int) -> Explanation:
    text = (
        f"the targets of the batch of step {step}. What the model gave is as usual, and {the(entry)} was "
        f"{2.0**bits:.3g} times what is usual: it comes from the loss, and so from what the loss is given besides."
    )
    because = "gradients are far above what is usual, and outputs are not"
    remedies = (
        Remedy(
            f"Look at the targets of the batch of step {step}, and leave out or clamp those that are so large.",
            "",
            because,
        ),
        Remedy("Clip the gradients, so that one batch moves the weights by so much at most.", CLIP, because),
    )
    test = f"Print the largest target of the batch of step {step}."
    return _of(Candidate("data", 0.88, (text,)), test, (finite,), remedies, rank)


def _operation(evidence: Evidence, step: int, rank: int) -> SavedValue | None:
    """The one that the agent saw in the graph of that loss; None where none is known."""
    graphs = (graph for event, graph in evidence.details(LossGraph) if (event.rank, event.step) == (rank, step))
    made = next(filter(None, map(operations.made_by, graphs)), None)
    return None if made is None or made.op in operations.SOFTMAX else made


def _made(made: SavedValue, finite: str, rank: int) -> Explanation:
    text = (
        f"{operations.word(made.op)} in the loss. {operations.made_text(made)} A mask, an index or torch.where kept "
        "it out of the gradients."
    )
    remedy = operations.against(made.op, "it is the first operation of the loss's graph that was not finite")
    return _of(Candidate("forward_arithmetic", 0.9, (text,)), BY_TERM, (finite,), (remedy,), rank)


def _range(evidence: Evidence, step: int, finite: str, rank: int, *, is_nan: bool) -> Explanation:
    if is_nan:
        text = (
            "arithmetic of the loss that gradients do not pass: what was logged is not what backward was called on, or "
            "a part of it has no gradient."
        )
        remedy = Remedy(
            "Print the parts of the loss, and look which of them is NaN.", "", "the loss is NaN, and no gradient is"
        )
        test = "Compare what is logged with the value that backward is called on."
        return _of(Candidate("forward_arithmetic", 0.6, (text,)), test, (finite,), (remedy,), rank)
    text = (
        "a sum or square in the loss is beyond the range of its dtype. Outputs and gradients are near what is usual: "
        "no single number of them is large."
    )
    because = "the loss is Inf, and gradients are finite and near what is usual"
    remedy = Remedy("Take a mean in place of a sum in the loss, or compute it in float64.", "", because)
    weight, ordinal = 0.7, _last_output(evidence)
    last = None if ordinal is None else evidence.tensors.entries[ordinal]
    name = "" if last is None else f"{the(last)[0].upper()}{the(last)[1:]}"
    if last is not None and _is_far_below(last, _amax(evidence, np.array([ordinal]), step, rank)[0]):
        text = (
            "a logarithm or a division of 0, or an exponential, in a part of the loss that gradients do not pass. "
            f"{name} is so small that no sum or square of it is beyond the range of {last.dtype}."
        )
        remedy = Remedy(
            "Print the parts of the loss of this batch, each by row, and keep what a logarithm or a division is given "
            "away from 0.",
            "",
            because,
        )
        return _of(Candidate("forward_arithmetic", weight, (text,)), BY_TERM, (finite,), (remedy,), rank)
    if last is not None and last.dtype in HALF_PRECISION:
        largest = 2.0 ** float(max_finite_log2([last.dtype])[0])
        weight = 0.86
        text += f" {name} is {last.dtype}, whose largest number is {largest:.5g}."
        code = "loss = torch.nn.functional.mse_loss(outputs.float(), targets.float(), reduction='mean')"
        remedy = Remedy("Compute the loss in float32, and take a mean in place of a sum.", code, because)
    test = f"Compute the loss of the batch of step {step} in float64: it is finite then."
    return _of(Candidate("forward_arithmetic", weight, (text,)), test, (finite,), (remedy,), rank)


def _is_far_below(last: TensorEntry, amax: float) -> bool:
    """Whether the sum of the squares of all its elements is far below the limit of its dtype."""
    elements = float(np.prod(last.shape, dtype=np.float64)) if last.shape else 1.0
    limit = float(max_finite_log2([last.dtype])[0])
    return bool(0 < amax < np.inf and 2 * np.log2(amax) + np.log2(max(elements, 1.0)) < limit - FAR_BITS)


def _last_output(evidence: Evidence) -> int | None:
    outputs = activations(evidence)
    return int(outputs[np.argmax(evidence.tensors.position[outputs])]) if len(outputs) else None
