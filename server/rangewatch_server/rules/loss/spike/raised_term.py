"""A jump of the loss by a term of its own: one that is computed from inside the model, or from its weights.

What rows or targets do to a loss comes back through the model's last output. The gradient of a term that is computed
from an inner output, as a penalty of sparsity is, or the balance of gates, begins there: the gradients of that output
and of those before it rise, and none of those behind it does. One that is computed of the weights raises their
gradients, and no output's.

That an output's gradient is no larger says little by itself: that of an absolute error or of a cross entropy has a
bound, and rows that were wrong in all directions may become wrong in one. What sums over rows, or over outputs, rises
then. So no parameter behind an inner output may have risen; and a penalty on weights is known by its gradients, which
are as large as each other (of magnitudes) or in proportion to the weights (of squares), where these are recorded.
"""

from __future__ import annotations

import numpy as np

from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import loss_name
from rangewatch_server.rules.loss.spike.bands import Placed
from rangewatch_server.rules.nonfinite.causes import Candidate
from rangewatch_server.rules.phrases import capital, the
from rangewatch_server.rules.recent import Array, tensors_of

CAUSE = "regularization"

LESS_THAN_SHOWN, POSSIBLE = 0.84, 0.5
"""It is not shown: no term of a loss is recorded by itself. And where rows may have done the same."""

LEAST_BITS = 3.0
"""By which a gradient must have risen at that very step."""

LOW_BITS, SUMMED_BITS = 2.0, 6.0
"""The same where a parameter before it has risen so far: the gradient of a mean is small at each element, and of one
sign in all of them."""

STILL_BITS = 1.0
"""By which none behind it may."""


ALIKE_BITS, FEWEST = 0.25, 2
"""By how much gradients of a penalty on magnitudes differ, and of how many parameters."""

IN_PROPORTION_BITS, FEWEST_IN_PROPORTION = 1.0, 3
"""The same of one on squares, in relation to weights that were read up to `READ_EVERY` steps before."""

READ_EVERY = 256


def raised_term(evidence: Evidence, step: int, history: int) -> Placed | None:
    """Of a jump at `step`, the output, or the first weight, that the term is computed from; `history`: steps before it
    that show what is usual. A term that rises makes the loss rise: gradients that do so alone are the backward's."""
    if not _loss_rose(evidence, step, history):
        return None
    of_outputs = _rises(evidence, tensors_of(evidence, "grad_output"), step, history)
    entries, position = evidence.tensors.entries, evidence.tensors.position
    if len(of_outputs) < 2:
        return None
    parameters = _rises(evidence, tensors_of(evidence, "grad"), step, history)
    summed = max((int(position[each]) for each in parameters if parameters[each] >= SUMMED_BITS), default=-1)
    # Gradients are in the order of the backward: first those of the model's own outputs.
    rose = sorted(
        (
            each
            for each, bits in of_outputs.items()
            if bits >= LEAST_BITS or (bits >= LOW_BITS and position[each] < summed)
        ),
        key=lambda each: int(position[each]),
    )
    if rose:
        first, entry = rose[0], entries[rose[0]]
        behind = [
            rise
            for each, rise in of_outputs.items()
            if position[each] < position[first] or (each != first and entries[each].fqn == entry.fqn == "")
        ]
        has_summed = any(parameters[each] >= LEAST_BITS for each in parameters if position[each] < position[first])
        if not behind or max(behind) > STILL_BITS or has_summed:
            return None
        text = (
            f"{capital(the(entry))} rose {2.0 ** of_outputs[first]:.3g} times at that very step, and that of no "
            "output behind it did: it begins there, and has not come back through what the model predicts, as what "
            "rows or targets do to a loss does. It is a term of the loss that is computed from that output: a "
            "penalty, a balance, or a loss of its own."
        )
        against = ("whether a weight behind it was changed, which raises the gradients before it as well.",)
        return Placed(Candidate(CAUSE, LESS_THAN_SHOWN, (text,), against), entry)
    raised = sorted(
        (each for each in parameters if parameters[each] >= LEAST_BITS), key=lambda each: int(position[each])
    )
    if not raised or max(of_outputs.values()) > STILL_BITS:
        return None
    more = f" and of {len(raised) - 1} more parameters" if len(raised) > 1 else ""
    text = (
        f"{capital(the(entries[raised[0]]))}{more} rose {2.0 ** parameters[raised[0]]:.3g} times at that very step, "
        "and that of no output did: "
    )
    if _is_penalty(evidence, raised, step):
        text += "it is a term of the loss that is computed from the weights themselves, as a penalty on their size is."
        return Placed(Candidate(CAUSE, LESS_THAN_SHOWN, (text,)), entries[raised[0]])
    text += "a penalty on the size of weights does so, and so do rows that are all wrong in one direction."
    return Placed(Candidate(CAUSE, POSSIBLE, (text,)), entries[raised[0]])


def _is_penalty(evidence: Evidence, raised: list[int], step: int) -> bool:
    """Whether these gradients are what a penalty on the size of weights gives at that step."""
    if len(raised) < FEWEST:
        return False
    bits = _last_bits(evidence, raised, step, step)
    if max(bits.values()) - min(bits.values()) <= ALIKE_BITS:
        return True
    entries = evidence.tensors.entries
    weights = _last_bits(evidence, tensors_of(evidence, "weight").tolist(), step - READ_EVERY, step)
    of = {entries[each].fqn: known for each, known in weights.items()}
    ratios = [bits[each] - of[entries[each].fqn] for each in raised if entries[each].fqn in of]
    return len(ratios) >= FEWEST_IN_PROPORTION and max(ratios) - min(ratios) <= IN_PROPORTION_BITS


def _last_bits(evidence: Evidence, tensors: list[int], since: int, step: int) -> dict[int, float]:
    """Of each tensor that was read in the steps from `since` to `step`, its last magnitude, as bits."""
    if not tensors:
        return {}
    low = max(evidence.start, since)
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, step + 1, ("amax",), np.array(tensors))
    amax = np.asarray(block.columns["amax"], np.float64)
    return {each: float(np.log2(row[row > 0][-1])) for each, row in zip(tensors, amax, strict=True) if (row > 0).any()}


def _loss_rose(evidence: Evidence, step: int, history: int) -> bool:
    """At that very step, to above all that it was in the steps before."""
    name, low = loss_name(evidence), max(evidence.start, step - history)
    values = np.zeros(0) if name is None else evidence.series(name, low, step + 1)
    before = values[:-1][np.isfinite(values[:-1])]
    return bool(len(before)) and bool(values[-1] > before.max())


def _rises(evidence: Evidence, tensors: Array, step: int, history: int) -> dict[int, float]:
    """Of each tensor that was read at `step`, and usually before it, the bits by which it is above the median."""
    low = max(evidence.start, step - history)
    if not len(tensors) or step - low < history // 4:
        return {}
    names = ("amax", "nan_count", "inf_count")
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, step + 1, names, tensors)
    amax, nans, infs = (np.asarray(block.columns[each], np.float64) for each in names)
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = np.where((amax > 0) & (nans + infs == 0), np.log2(amax), np.nan)
        if evidence.is_loss_scaled:
            bits = bits - np.log2(evidence.series("loss_scale", low, step + 1))
    had = np.isfinite(bits[:, :-1])
    known = np.flatnonzero(np.isfinite(bits[:, -1]) & (had.mean(axis=1) > 0.5))
    return {int(tensors[at]): float(bits[at, -1] - np.median(bits[at, :-1][had[at]])) for at in known}
