"""Of a jump, what its gradients say of how the loss was computed: what it, or the loss of some rows, was multiplied by,
or where in the backward it began.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rangewatch_server.numerics.pyramid import FANOUT, RANGES, level_for
from rangewatch_server.rules.evidence import SCAN_COLUMNS, Evidence
from rangewatch_server.rules.loss.learning_rate import HISTORY
from rangewatch_server.rules.loss.spike.bands import FEWEST, Placed, ranks_of
from rangewatch_server.rules.nonfinite.causes import Candidate
from rangewatch_server.rules.phrases import capital, the
from rangewatch_server.rules.recent import Array, tensors_of

FACTOR_BITS, FACTOR_SLACK, FACTOR_PART = 3.0, 2.0, 0.2
"""Bits by which a loss must have risen whose gradients say that it was multiplied: as far as it, within so many bits
and this part of its own. A squared error of odd targets raises them by half as many bits, a bounded one by none."""

FAR_FACTOR_BITS = 6.0
"""The same where the logged loss has not risen: rows that are wrong in one direction raise gradients by less."""

FACTOR_ROOM = 4.0
"""A cross entropy of rows that were nearly right and are wrong raises both alike, by up to 1 over the part that was
wrong, and so many times as far where rows no longer pull apart: a factor is only likely above that."""

ABOVE_BITS = 2.0
"""Bits by which the gradient nearest to the loss must be above all before it: of a cross entropy it has a bound, which
it is near at first, when the model knows nothing."""


def of_rows(evidence: Evidence, name: str, step: int, rank: int | None) -> Iterator[Candidate]:
    """The gradient nearest to the loss rose as far as the loss or further, and above all before, with no output: as of
    some rows whose losses were multiplied. Targets that are far off raise the gradient of a squared error by the root
    of what they raise the loss by."""
    low, nearest = max(evidence.start, step - HISTORY), _nearest(evidence)
    rise = _median_rise(evidence, nearest, low, step, rank) if step - low >= FEWEST and len(nearest) else None
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.log2(evidence.series(name, low, step + 1, rank))
    if rise is None or not np.isfinite(loss[:-1]).any():
        return
    factor = float(loss[-1]) - float(np.nanmedian(loss[:-1]))
    if not FACTOR_BITS <= factor < np.inf or rise < factor - min(FACTOR_SLACK, FACTOR_PART * factor):
        return
    ranks, level = list(ranks_of(evidence, rank)), level_for(max(1, low - evidence.start), SCAN_COLUMNS)
    stop = max(evidence.start, low // FANOUT**level * FANOUT**level)
    amax = [
        np.asarray(evidence.run.slice(RANGES, ranks, of, begin, end, ("amax",), nearest).columns["amax"], np.float64)[0]
        for of, begin, end in ((level, evidence.start, stop), (0, stop, step + 1))
        if begin < end
    ]
    highest, last = max(each.max(initial=0.0) for each in (*amax[:-1], amax[-1][:-1])), float(amax[-1][-1])
    if not highest > 0 or last < 2.0**ABOVE_BITS * highest:
        return
    entry = evidence.tensors.entries[int(nearest[0])]
    text = (
        f"{capital(the(entry))}, which is made first, rose {2.0**rise:.3g} times at that very step, above all that it "
        f"was before, and the loss {2.0**factor:.3g} times, while no output did: the loss of some rows was multiplied. "
        "Targets that are far off would raise the gradient of a squared error by less than the loss."
    )
    yield Candidate("forward_arithmetic", 0.83, (text,), ("the weights of rows: they are not recorded.",))


def of_factor(evidence: Evidence, name: str, step: int, rank: int | None) -> Iterator[Candidate]:
    """The loss rose at that step, and the gradients by the same factor: those of outputs too, which have a bound where
    rows are wrong, and sum over none."""
    low, rise, of_outputs = _gradient_rises(evidence, step, rank)
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.log2(evidence.series(name, low, step + 1, rank))
    if rise is None or not np.isfinite(loss[:-1]).any():
        return
    usual = float(np.nanmedian(loss[:-1]))
    factor = float(loss[-1]) - usual
    slack = min(FACTOR_SLACK, FACTOR_PART * factor)
    if not FACTOR_BITS <= factor < np.inf or abs(rise - factor) > slack:
        return
    if of_outputs is not None and abs(of_outputs - factor) > slack:
        return
    texts = (
        f"The loss rose to about {2.0**factor:.3g} times what was usual, the gradients with it to about "
        f"{2.0**rise:.3g} times, and no output did.",
        f"Odd targets would raise the gradients of a squared error by the root of that, to {2.0 ** (factor / 2):.3g} "
        "times.",
    )
    if 2.0**rise * -np.expm1(-(2.0**usual)) > FACTOR_ROOM:
        yield Candidate("forward_arithmetic", 0.82, texts)
    else:
        text = "A cross entropy of rows that the model had nearly right, and has wrong now, rises so by itself."
        yield Candidate("forward_arithmetic", 0.5, (texts[0], text))


def of_multiplied(evidence: Evidence, name: str, step: int, rank: int | None) -> Iterator[Candidate]:
    """The gradients rose at that step, those of outputs as far as those of parameters, and the logged loss did not."""
    low, rise, of_outputs = _gradient_rises(evidence, step, rank)
    losses = evidence.series(name, low, step + 1, rank)
    before = losses[:-1][np.isfinite(losses[:-1])]
    if rise is None or of_outputs is None or not len(before) or not losses[-1] <= before.max():
        return
    slack = max(FACTOR_SLACK, FACTOR_PART * of_outputs)
    if of_outputs < FAR_FACTOR_BITS or not np.isfinite(of_outputs) or abs(rise - of_outputs) > slack:
        return
    # What begins in the midst of the model goes to all that lies before it, and not to what lies behind.
    nearest = _median_rise(evidence, _nearest(evidence), low, step, rank)
    if nearest is not None and abs(nearest - of_outputs) > slack:
        return
    text = (
        f"The gradients rose at that very step, those of outputs to about {2.0**of_outputs:.3g} times what was usual "
        f"and those of parameters to {2.0**rise:.3g} times, while no output rose and the loss that is logged did not: "
        "what the backward began with was multiplied after that, as by a weight of the batch, or a scale."
    )
    yield Candidate("forward_arithmetic", 0.84, (text,))


BACKWARD_BITS, STILL_BITS = 6.0, 1.5
"""Bits by which gradients must have risen in the midst of the backward, and by which none nearer to the loss may."""


def of_backward(evidence: Evidence, name: str, step: int, rank: int | None) -> Placed | None:
    """Gradients rose at that step from some place of the backward on, and neither those nearer to the loss nor the loss
    or any output did: what lies there makes them so large."""
    low, tensors = max(evidence.start, step - HISTORY), tensors_of(evidence, "grad_output")
    losses = evidence.series(name, low, step + 1)
    before = losses[:-1][np.isfinite(losses[:-1])]
    if step - low < FEWEST or not len(tensors) or not len(before) or not losses[-1] <= before.max():
        return None
    order = tensors[np.argsort(evidence.tensors.position[tensors], kind="stable")]
    every = np.sort(order)
    rises = _rises(evidence, every, low, step, rank)[np.searchsorted(every, order)]
    order, rises = order[np.isfinite(rises)], rises[np.isfinite(rises)]
    at = int(np.argmax(rises >= BACKWARD_BITS)) if len(rises) else 0
    if not at or rises[:at].max() > STILL_BITS:
        return None
    first, behind = (evidence.tensors.entries[int(order[each])] for each in (at, at - 1))
    text = (
        f"{capital(the(first))} is the first, counted from the loss, that rose at that very step, "
        f"{2.0 ** float(rises[at]):.3g} times; {the(behind)} and those nearer to the loss did not, and neither did any "
        "output nor the loss: the backward of what lies between made it so large."
    )
    against = ("whether another loss begins there, as a balance or one on an inner layer does, that is not logged.",)
    return Placed(Candidate("backward_arithmetic", 0.8, (text,), against), first)


def _gradient_rises(evidence: Evidence, step: int, rank: int | None) -> tuple[int, float | None, float | None]:
    """The first step that shows what is usual, and the bits by which gradients of parameters, and those of outputs, are
    above that; None: not known."""
    low = max(evidence.start, step - HISTORY)
    if step - low < FEWEST:
        return low, None, None
    rises = (_median_rise(evidence, tensors_of(evidence, kind), low, step, rank) for kind in ("grad", "grad_output"))
    return low, next(rises), next(rises)


def _nearest(evidence: Evidence) -> Array:
    """Of the gradients of outputs the one that the backward makes first."""
    tensors = tensors_of(evidence, "grad_output")
    return tensors[np.argsort(evidence.tensors.position[tensors], kind="stable")][:1]


def _median_rise(evidence: Evidence, tensors: Array, low: int, step: int, rank: int | None) -> float | None:
    """Bits by which gradients are above what they were from the step `low` on, the median of them; None: not known."""
    rises = _rises(evidence, tensors, low, step, rank) if len(tensors) else np.zeros(0)
    known = rises[np.isfinite(rises)]
    return float(np.median(known)) if len(known) else None


def _rises(evidence: Evidence, tensors: Array, low: int, step: int, rank: int | None) -> Array:
    """(n,) bits by which (n,) ascending gradients are above their median from the step `low` on; NaN: not known."""
    amax = evidence.run.slice(RANGES, list(ranks_of(evidence, rank)), 0, low, step + 1, ("amax",), tensors)
    values = np.asarray(amax.columns["amax"], np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = np.log2(np.where(values > 0, values, np.nan))
        if evidence.is_loss_scaled:
            bits = bits - np.log2(evidence.series("loss_scale", low, step + 1))
    known = np.isfinite(bits[:, -1]) & np.isfinite(bits[:, :-1]).any(axis=1)
    rises = np.full(len(bits), np.nan)
    rises[known] = bits[known, -1] - np.nanmedian(bits[known, :-1], axis=1)
    return rises
