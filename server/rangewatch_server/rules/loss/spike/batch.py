"""Of a jump, what speaks for the batch, and for how its loss is computed."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from rangewatch_server.numerics.pyramid import FANOUT, RANGES, level_for
from rangewatch_server.rules.batch_rows import outliers, rows_of
from rangewatch_server.rules.evidence import SCAN_COLUMNS, Evidence
from rangewatch_server.rules.inputs import INPUTS
from rangewatch_server.rules.loss.learning_rate import HISTORY
from rangewatch_server.rules.loss.series import TARGETS
from rangewatch_server.rules.loss.spike.bands import (
    EARLIER,
    FEWEST,
    INPUT_BITS,
    OUT_DEVIATIONS,
    Placed,
    Riser,
    activations,
    is_input_side,
    name_of,
    ranks_of,
    stays,
)
from rangewatch_server.rules.nonfinite.causes import Candidate
from rangewatch_server.rules.phrases import capital, the
from rangewatch_server.rules.recent import Array, tensors_of
from rangewatch_server.rules.trend import MAD

FAR_BITS = 3.0
"""Bits within one step that no update makes whose gradients were as usual."""

BEYOND_BITS = 20.0
"""Bits that no batch makes of inputs whose size is as usual: then a weight of that rank may be another."""

READ_EVERY = 4
"""Steps from one reading of what the model is given to the next, on an accelerator."""

FACTOR_BITS, FACTOR_SLACK, FACTOR_PART = 3.0, 2.0, 0.2
"""Bits by which a loss must have risen whose gradients say that it was multiplied: as far as it, within so many bits
and this part of its own. A squared error of odd targets raises them by half as many bits, a bounded one by none."""

FAR_FACTOR_BITS = 6.0
"""The same where the logged loss has not risen: rows that are wrong in one direction raise gradients by less."""

FACTOR_ROOM = 4.0
"""A cross entropy of rows that were nearly right and are wrong raises both alike, by up to 1 over the part that was
wrong, and so many times as far where rows no longer pull apart: a factor is only likely above that."""


def of_data(
    evidence: Evidence, name: str | None, rank: int | None, step: int, outputs: list[Riser], gradients: list[Riser], *,
    is_other: bool, is_short: bool, is_lasting: bool,
) -> Iterator[Candidate]:  # fmt: skip
    known = [rows for each in ranks_of(evidence, rank) if (rows := rows_of(evidence.run, each, step)) is not None]
    if any(outliers(rows) for rows in known):
        yield Candidate("data", 0.93, ("Rows of its batch have far larger losses than the others.",))
    early = [each for each in (*outputs, *gradients) if each.step < step]
    if early or is_other:
        return
    moved = given_moved(evidence, rank, step)
    if moved is not None:
        yield Candidate(
            "data",
            0.9 if moved.at == step else 0.8,
            (moved.text,),
            () if known else ("which rows: rangewatch.batch(ids=...) names them.",),
        )
        return
    first = next((each for each in outputs if each.step == step), None)
    against = ("the losses of its rows. rangewatch.batch(ids=..., losses=...) records them.",)
    if is_short and name is not None:
        text = "It was low again right after it: weights that had moved too far would have kept it high."
        yield Candidate("data", 0.78, (text,), () if known else against)
    if first is None and name is not None and evidence.tensors.entries:
        is_read = evidence.has_series(TARGETS) and np.isfinite(evidence.series(TARGETS, step, step + 1, rank)).any()
        text = "Nothing that the model computes left its usual range before the loss did"
        if is_lasting:
            size = ", whose size is as usual," if is_read else ""
            text += (
                ", and it has stayed for longer than a single batch does: the targets of all batches since"
                f"{size} or how the loss is computed since then (a mask that was turned around, a weight of a term or "
                "of rows that was raised), are what is left."
            )
        elif is_read:
            text += (
                ", nor did the size of its targets: which target is of which row, or how the loss is computed, is left."
            )
        else:
            text += ": its targets, or how its loss is computed, are what is left."
        yield Candidate("data", 0.8 if gradients else 0.55, (text,), () if known else against)
    elif first is not None and is_input_side(evidence, first):
        text = f"{name_of(evidence, first)} rose {2.0**first.bits:.3g} times at that very step, and nothing before it."
        if not stays(evidence, first):
            yield Candidate("data", 0.8, (text,), () if known else against)
        else:
            text += " It has stayed so: that is of all batches since, or of its weights."
            is_far = first.bits >= FAR_BITS
            text += " No gradient had risen, so that no update moved a weight so far within one step." * is_far
            yield Candidate("data", 0.7 if is_far else 0.57, (text,), () if known else against)
            yield Candidate("weight", 0.55, ("It may be what an update or other code left its weights at.",))
    is_beyond = any(each.bits >= BEYOND_BITS for each in outputs)
    if rank is not None and len(evidence.ranks) > 1 and not is_beyond:
        text = f"Rank {rank} alone has it, and its weights are to be those of the others."
        yield Candidate("data", 0.85, (text,))


class Moved(msgspec.Struct, frozen=True):
    """What is given left its range, `bits` up or down, as was read at the step `at`. `stays`: at all readings since."""

    text: str
    at: int
    bits: float
    stays: bool


STAYS = 16
"""Steps from a jump on in which what is given is read again, to see whether it was that of one batch."""


def given_moved(evidence: Evidence, rank: int | None, step: int) -> Moved | None:
    """What the model, or the loss, is given left its range at that very step; None where it did not. Read later, it may
    be a state that the step itself has made so, as of a recurrence."""
    found = (_given_moved(evidence, each, rank, step) for each in (TARGETS, *INPUTS))
    return next((each for each in found if each), None)


def _given_moved(evidence: Evidence, name: str, rank: int | None, step: int) -> Moved | None:
    low = max(evidence.start, step - HISTORY)
    if not evidence.has_series(name) or step - low < FEWEST:
        return None
    values = evidence.series(name, low, min(step + STAYS, evidence.whole_stop), rank)
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = np.where(values > 0, np.log2(values), np.nan)
    before, since = bits[: step - low], bits[step - low :]
    at = step + int(np.argmax(np.isfinite(since)))
    before, since = before[np.isfinite(before)], since[np.isfinite(since)]
    if len(before) < 3 or not len(since) or at >= step + READ_EVERY:
        return None
    now, usual = float(since[0]), float(np.median(before))
    scatter = MAD * float(np.median(np.abs(before - usual)))
    away = max(INPUT_BITS, OUT_DEVIATIONS * scatter)
    if before.min() - away < now < before.max() + away:
        return None
    when = "changed at that very step" if at == step else f"had changed by step {at}, where it was read next"
    if name == TARGETS:
        subject, what = "What the loss compares with", "targets"
    else:
        subject = "What the model is given"
        what = "first floating input" if name == INPUTS[0] else f"floating input {INPUTS.index(name) + 1}"
    text = (
        f"{subject} {when}: the root mean square of its {what}, by a sample, is {2.0**now:.3g}, and was "
        f"{2.0**usual:.3g} before, between {2.0 ** float(before.min()):.3g} and {2.0 ** float(before.max()):.3g}."
    )
    stays = len(since) > 1 and bool((np.sign(now - usual) * (since - usual) > abs(now - usual) / 2).all())
    return Moved(text, at, abs(now - usual), stays)


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


NO_SLOPE, SAME = 8, 1e-3
"""Steps from a jump on in which every gradient is 0, at most, and the part of the loss by which it varies then."""


def of_no_slope(evidence: Evidence, name: str, step: int) -> Iterator[Candidate]:
    """The loss stays at one value from that step on, and every gradient is exactly 0, though no output is."""
    gradients, outputs = tensors_of(evidence, "grad"), activations(evidence)
    stop = min(evidence.whole_stop, step + NO_SLOPE)
    if not len(gradients) or not len(outputs) or step <= evidence.start or stop - step < EARLIER:
        return
    ranks, wanted = list(evidence.ranks), ("call_count", "amax", "nan_count", "inf_count")
    block = evidence.run.slice(RANGES, ranks, 0, step - 1, stop, wanted, gradients)
    calls, amax, nans, infs = (np.asarray(block.columns[each], np.float64) for each in wanted)
    values = evidence.series(name, step, stop)
    is_one = bool(np.isfinite(values).all()) and np.ptp(values) <= SAME * abs(float(values[0]))
    had, has = amax[:, 0].any(), (amax + nans + infs)[:, 1:].any()
    if not is_one or not had or has or not calls[:, 1:].any():
        return
    given = evidence.run.slice(RANGES, ranks, 0, step - 1, step + 1, ("amax",), outputs).columns["amax"]
    if ((given[:, 0] > 0) & (given[:, 1] == 0)).any():
        return  # units that died give no gradient either
    text = (
        f"From that very step on the loss is {float(values[0]):.6g} and every gradient exactly 0, while what the model "
        "gives is as usual: the loss no longer depends on it. A sum beyond 65504 in float16 is Inf, and what is "
        "divided by it 0; a clamp or a comparison gives a constant, too."
    )
    yield Candidate("no_gradient", 0.87, (text,), ("which operation: what the loss is computed of is not recorded.",))
