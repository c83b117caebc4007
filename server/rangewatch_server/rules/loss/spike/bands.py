"""What left its usual range at a jump: tensors in call order, and the first such step of each."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from rangewatch.wire.records import TensorEntry
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.learning_rate import HISTORY
from rangewatch_server.rules.nonfinite.causes import Candidate
from rangewatch_server.rules.phrases import capital, the
from rangewatch_server.rules.recent import MOST_RANKS, Array, tensors_of
from rangewatch_server.rules.trend import MAD

INPUT_BITS = 0.75
"""Bits by which what is given must be beyond all that it was before."""


FEWEST = 12
"""Points of the steps before a jump that show what is usual that are needed."""

EARLIER = 3
"""Steps before it in which a cause may lie."""

EMBEDDINGS = ("Embedding", "EmbeddingBag")

OUT_BITS, OUT_DEVIATIONS = 0.75, 8.0
"""A tensor has left its band if it is so far above all before it, in bits and in standard deviations of its steps."""

SHORT = 2
"""Steps within which what the weights did to the loss is not over."""


class Riser(msgspec.Struct, frozen=True):
    """A tensor that left its band first at `step`, by `bits` above what was usual."""

    tensor: int
    step: int
    bits: float


class Placed(msgspec.Struct, frozen=True):
    """What speaks for a cause of the jump, and the tensor at which it does so."""

    candidate: Candidate
    entry: TensorEntry


def loss_left(evidence: Evidence, name: str, step: int) -> bool:
    """Whether the series left its band in the steps up to `step`."""
    low = max(evidence.start, step - EARLIER - HISTORY)
    values = evidence.series(name, low, step + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = np.where(values > 0, np.log2(values), np.nan)
    return left_band(low, bits, step) is not None


def ranks_of(evidence: Evidence, rank: int | None) -> Iterable[int]:
    return evidence.ranks[:MOST_RANKS] if rank is None else (rank,)


def activations(evidence: Evidence) -> Array:
    """Outputs but for single numbers, such as the loss of a model that returns it."""
    entries = evidence.tensors.entries
    outputs = tensors_of(evidence, "output")
    return outputs[[int(np.prod(entries[each].shape)) > 1 for each in outputs.tolist()]] if len(outputs) else outputs


def risers(evidence: Evidence, tensors: Array, step: int) -> list[Riser]:
    """Those that left their band in the steps up to `step`, in call order; of each the first such step."""
    low, stop = max(evidence.start, step - EARLIER - HISTORY), step + 1
    if not len(tensors) or stop - low <= FEWEST:
        return []
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, stop, ("amax", "nan_count", "inf_count"), tensors)
    amax, nans, infs = (np.asarray(block.columns[each], np.float64) for each in ("amax", "nan_count", "inf_count"))
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = np.where((amax > 0) & (nans + infs == 0), np.log2(amax), np.nan)
        if evidence.is_loss_scaled and evidence.tensors.entries[int(tensors[0])].kind == "grad":
            bits = bits - np.log2(evidence.series("loss_scale", low, stop))
    risers = []
    for tensor, row in zip(tensors.tolist(), bits, strict=True):
        left = left_band(low, row, step)
        if left is not None:
            risers.append(Riser(tensor, *left))
    position = evidence.tensors.position
    return sorted(risers, key=lambda each: (each.step, int(position[each.tensor])))


def left_band(low: int, row: Array, step: int) -> tuple[int, float] | None:
    """The first step of the last `EARLIER` + 1 at which (n,) bits from step `low` on left what was before them."""
    begin = max(0, step - EARLIER - low)
    before = row[:begin][np.isfinite(row[:begin])]
    if len(before) < FEWEST:
        return None
    usual, highest = float(np.median(before)), float(before.max())
    scatter = MAD * float(np.median(np.abs(before - usual)))
    bar = max(highest + OUT_BITS, usual + OUT_DEVIATIONS * scatter)
    at = np.flatnonzero(row[begin:] > bar)
    return (low + begin + int(at[0]), float(row[begin + at[0]] - usual)) if len(at) else None


def first_ratio(evidence: Evidence, step: int) -> Riser | None:
    """The first weight, in call order, whose update over its size left its band before the jump."""
    updates, weights = tensors_of(evidence, "update"), tensors_of(evidence, "weight")
    low, entries = max(evidence.start, step - EARLIER - 4 * HISTORY), evidence.tensors.entries
    if not len(updates) or not len(weights) or step <= low:
        return None
    change = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, step, ("amax",), updates).columns["amax"]
    size = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, step, ("amax",), weights).columns["amax"]
    rows = {entries[int(each)].fqn: row for each, row in zip(weights, np.asarray(size, np.float64), strict=True)}
    first: list[Riser] = []
    for tensor, row in zip(updates.tolist(), np.asarray(change, np.float64), strict=True):
        known = rows.get(entries[tensor].fqn)
        if known is None or not (known > 0).any():
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            bits = np.where(row > 0, np.log2(row / np.median(known[known > 0])), np.nan)
        left = left_band(low, bits, step - 1)
        if left is not None:
            first.append(Riser(tensor, *left))
    position = evidence.tensors.position
    return min(first, key=lambda each: (each.step, int(position[each.tensor])), default=None)


MOST_CALLS = 4.0
"""Calls of a discriminator to one of its generator: of the data, of what was made, of what lies between, and for it."""


def is_input_side(evidence: Evidence, riser: Riser) -> bool:
    """Whether its module is the first of the model that is called, so that the batch alone comes before it; or is
    called more often in the step than all before it, as a discriminator is, once of the data alone, with all that comes
    after it. A cell of a recurrence, or a layer that is shared, is given what it made itself, or the layer before did,
    and a head comes after it that is called less often.

    An embedding gives rows of its weight, whatever the batch is.
    """
    if evidence.tensors.entries[riser.tensor].module in EMBEDDINGS:
        return False
    position = evidence.tensors.position
    outputs = activations(evidence)
    is_before = position[outputs] < position[riser.tensor]
    if not is_before.any():
        return True
    calls = evidence.run.slice(RANGES, list(evidence.ranks), 0, riser.step, riser.step + 1, ("call_count",), outputs)
    count = np.asarray(calls.columns["call_count"], np.float64)[:, 0]
    before, since = count[is_before].max(), count[~is_before]
    return bool(before < since[since > 0].min(initial=np.inf) <= MOST_CALLS * before)


def stays(evidence: Evidence, riser: Riser) -> bool:
    """Whether it is still as far above what was usual, by half, `SHORT` steps later: one batch is not."""
    low, stop = riser.step, riser.step + SHORT + 1
    chosen = np.array([riser.tensor])
    amax = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, stop, ("amax",), chosen).columns["amax"][0]
    return bool(len(amax) > SHORT and amax[SHORT] >= amax[0] * 2.0 ** (-riser.bits / 2))


def name_of(evidence: Evidence, riser: Riser) -> str:
    return capital(the(evidence.tensors.entries[riser.tensor]))
