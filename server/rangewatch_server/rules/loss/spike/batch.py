"""Of a jump, what speaks for the batch, and for a loss that no longer depends on the model."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.batch_rows import outliers, rows_of
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.inputs import INPUTS
from rangewatch_server.rules.loss.learning_rate import HISTORY
from rangewatch_server.rules.loss.series import TARGETS
from rangewatch_server.rules.loss.spike.bands import (
    EARLIER,
    FEWEST,
    INPUT_BITS,
    OUT_DEVIATIONS,
    Riser,
    activations,
    is_input_side,
    name_of,
    ranks_of,
    stays,
)
from rangewatch_server.rules.nonfinite.causes import Candidate
from rangewatch_server.rules.recent import tensors_of
from rangewatch_server.rules.trend import MAD

FAR_BITS = 3.0
"""Bits within one step that no update makes whose gradients were as usual."""

BEYOND_BITS = 20.0
"""Bits that no batch makes of inputs whose size is as usual: then a weight of that rank may be another."""

READ_EVERY = 4
"""Steps from one reading of what the model is given to the next, on an accelerator."""


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
