"""Updates that are smaller than half the distance to the next number of the weights' dtype: nothing changes. In 16 bits
so it is of weights of a usual size; in others of those that lie far from 0, see `lost_far_from_zero`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rangewatch_server.numerics.pyramid import FANOUT, level_for
from rangewatch_server.rules.evidence import SCAN_COLUMNS, Evidence
from rangewatch_server.rules.loss.series import RATES, has_fallen
from rangewatch_server.rules.optimizers import newest_optimizers
from rangewatch_server.rules.phrases import listed, place
from rangewatch_server.rules.recent import Array, only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds
from rangewatch_server.rules.setup.lost_far_from_zero import lost_far_from_zero
from rangewatch_server.rules.setup.update_reads import BITS, SIZES, Reads, spacing_at, update_reads

LASTING = 4
"""Readings in a row of which it must be so, and steps that they must span."""

SPAN = 64

GROWS, LOW = 1.05, 0.5
"""How many times as high a learning rate that is still warmed up is as 64 steps before; and the part of its highest
below which it has been lowered: small updates are meant then."""

HELD = 16
"""Steps for which a learning rate that has not risen at all is not warmed up."""

PUSHED = 0.5
"""Share of a parameter's elements that must have had a gradient at each reading, to be said to stay for rounding."""

SGD_SHARE = 0.97
"""Of optimizers that do not divide by the size of the gradient most updates are small by nature."""

FELL = 0.9
"""Part of its first value to which a loss must have fallen that is learned all the same."""

FEW = 16


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most two findings, of all parameters that were sampled together: of those of 16 bits, and of others that lie
    far from 0."""
    reads = update_reads(evidence)
    if reads is not None:
        yield from _in_16_bits(evidence, reads, limits)
        yield from lost_far_from_zero(evidence, reads, _is_usual_rate(evidence, reads.at), limits["share"])


def _in_16_bits(evidence: Evidence, reads: Reads, limits: Thresholds) -> Iterator[Finding]:
    dtypes = [evidence.tensors.entries[int(each)].dtype for each in reads.tensors]
    rows = np.array([each in ("bfloat16", "float16") for each in dtypes], bool)
    pushed, unmoved = (reads.columns[name][rows].sum(axis=0) for name in ("pushed_count", "unmoved_count"))
    there = np.flatnonzero(pushed > 0)
    there = there[_is_usual_rate(evidence, reads.at[there])]
    if len(there) < LASTING or reads.at[there[-1]] - reads.at[there[0]] < SPAN:
        return
    shares = unmoved[there] / pushed[there]
    if np.median(shares) >= _least(evidence, limits["share"]) and shares[-LASTING:].min() >= limits["share"] / 2:
        yield _finding(evidence, reads, rows, there, shares)
    elif _least(evidence, 0.0) == 0.0 and len(still := _still(reads, rows, there)):
        yield _of_some(evidence, reads, still, there)


def _still(reads: Reads, rows: Array, there: Array) -> Array:
    """Rows of those whose sampled elements all stayed as they were at each of these readings, though they had
    gradients: an update of Adam is about the learning rate, whatever the gradient."""
    sampled, pushed, unmoved = (
        reads.columns[name][:, there] for name in ("sampled_count", "pushed_count", "unmoved_count")
    )
    is_still = (pushed >= PUSHED * sampled) & (sampled > 0) & (unmoved == pushed)
    return np.flatnonzero(rows & is_still.all(axis=1))


def _of_some(evidence: Evidence, reads: Reads, still: Array, there: Array) -> Finding:
    entries = [evidence.tensors.entries[int(reads.tensors[row])] for row in still]
    first, rank, since, last = entries[0], only_rank(evidence), int(reads.at[there[0]]), int(reads.at[there[-1]])
    others = f" and {len(entries) - 1} more parameters" if len(entries) > 1 else ""
    listing = (f"The others: {listed(entries[1:])}.",) if others else ()
    return Finding(
        rank=rank, step=since, tensor=first.fqn, kind="grad", subject="rounded",
        summary=f"{place(since, rank)}: not one element of {first.fqn} ({first.dtype}){others} changes: each update is "
        "rounded away, though gradients are not 0.",
        evidence=(
            f"So it was at {len(there)} readings from step {since} to step {last}, of all elements that were read.",
            *listing,
            *_size(reads, int(still[0]), there, first.dtype),
            *_rounding(evidence, first.dtype),
        ),
        remedy=_remedies(first.dtype),
        facts={"parameters": len(entries), "since_step": since, "readings": len(there), "cause_class": "optimizer"},
    )  # fmt: skip


def _size(reads: Reads, row: int, there: Array, dtype: str) -> Iterator[str]:
    """Agents from before send no size."""
    if any(name not in reads.columns for name in SIZES):
        return
    size, rate = float(reads.columns[SIZES[0]][row, there].min()), float(np.median(reads.columns[SIZES[1]][row, there]))
    if 0 < size < np.inf and rate > 0:
        yield (
            f"Its elements are {size:.3g} in magnitude or more, where neighbours are {spacing_at(dtype, size):.2g} "
            f"apart; its learning rate is {rate:.3g}."
        )


def _least(evidence: Evidence, share: float) -> float:
    classes = newest_optimizers(evidence).classes
    return max(share, SGD_SHARE) if any(name in ("SGD", "ASGD") for name in classes) else share


def _is_usual_rate(evidence: Evidence, steps: Array) -> Array:
    """(n,) bool: the learning rate is neither being warmed up nor has it been lowered; True where it is not known."""
    name = next((each for each in RATES if evidence.has_series(each)), None)
    if name is None or not len(steps):
        return np.ones(len(steps), bool)
    stop = int(steps[-1]) + 1
    level = level_for(stop - evidence.start, SCAN_COLUMNS)  # a long run has more steps than can be read for this
    size = FANOUT**level
    values = evidence.largest(name, evidence.start, stop, level)
    highest = values.max()
    if not np.isfinite(highest):
        return np.ones(len(steps), bool)
    high = np.maximum.accumulate(values)
    first = evidence.start // size
    now, before = steps // size - first, np.maximum(steps - SPAN, evidence.start) // size - first
    rate = values[now]
    held = np.maximum(steps - HELD, evidence.start) // size - first
    is_held = (high[now] <= high[held]) & (steps - HELD >= evidence.start)
    is_warm = (high[now] <= GROWS * high[before]) | is_held | (steps == evidence.start)
    return np.asarray(~np.isfinite(rate) | (is_warm & (rate >= LOW * highest)))


def _finding(evidence: Evidence, reads: Reads, rows: Array, there: Array, shares: Array) -> Finding:
    rank, since = only_rank(evidence), int(reads.at[there[0]])
    share = float(np.median(shares))
    pushed, unmoved = (reads.columns[name][rows][:, there].sum(axis=1) for name in ("pushed_count", "unmoved_count"))
    with np.errstate(invalid="ignore", divide="ignore"):
        of_each = np.nan_to_num(unmoved / pushed)
    worst = int(reads.tensors[rows][int(np.argmax(of_each))])
    entry, falls = evidence.tensors.entries[worst], has_fallen(evidence, FEW, FELL)
    return Finding(
        severity="info" if falls else "",
        rank=rank, step=since, tensor=entry.fqn, kind="grad", subject="rounded",
        summary=f"{place(since, rank)}: {share:.0%} of the updates of weights in {entry.dtype} are rounded away: the "
        "weights stay as they were, though their gradients are not 0.",
        evidence=tuple(_evidence(evidence, entry.dtype, entry.fqn, float(of_each.max()), len(there), int(rows.sum()))),
        remedy=_remedies(entry.dtype),
        facts={"share": share, "since_step": since, "readings": len(there), "cause_class": "optimizer"},
    )  # fmt: skip


def _remedies(dtype: str) -> tuple[Remedy, ...]:
    return (
        Remedy(
            f"Keep the weights in float32 and compute in {dtype} under autocast; or use an optimizer with float32 "
            "master weights, Kahan summation or stochastic rounding.",
            "model.float()  # before the optimizer is made; the forward under torch.autocast",
            "single elements were compared before and after the optimizer's step",
        ),
    )


def _evidence(evidence: Evidence, dtype: str, fqn: str, most: float, readings: int, count: int) -> Iterator[str]:
    yield (
        f"In {readings} readings of up to 4,096 elements each of {count} parameters; of {fqn} {most:.0%} stay as they "
        "were."
    )
    yield from _rounding(evidence, dtype)


def _rounding(evidence: Evidence, dtype: str) -> Iterator[str]:
    bits = BITS[dtype]
    yield (
        f"{dtype} holds {bits} significant bits: an update below {2.0**-bits / 2:.2g} of a weight, or twice that just "
        "above a power of two, is less than half the distance to the next number, and torch's optimizers round to the "
        "nearest."
    )
    name = next((each for each in RATES if evidence.has_series(each)), None)
    rates = np.zeros(0) if name is None else evidence.series(name)
    if len(rates := rates[np.isfinite(rates)]):
        yield f"The learning rate is {rates[-1]:.3g}; Adam moves an element by about that much, whatever its gradient."
    yield (
        "Cause (shown): rounding. What would decide whether it matters: train some hundred steps with float32 weights, "
        "and compare the losses."
    )


RULE = Rule(
    name="rounded_updates",
    title="Updates are rounded away",
    severity="warning",
    explanation="Most updates are smaller than half the distance to the next number that the weights can hold: the "
    "optimizer's step leaves them as they were, step after step, and no gradient is zero nor anything NaN. So it is of "
    "weights in 16 bits, and of parameters in float32 or float64 that lie far from 0, as places in metres from a far "
    "origin, times since 1970 or counters: at 5 million numbers of float32 are 0.5 apart. Read of single elements "
    "before and after the step, each 32nd step, of torch's own optimizers, which round to the nearest; not while the "
    "learning rate is warmed up or has been lowered. Info where the loss falls all the same, but for a parameter that "
    "never moves at all under an optimizer such as Adam, as norms at 1.0 in bfloat16, or one far from 0.",
    check=check,
    thresholds=(Threshold("share", 0.8, "of the updates", "So many must leave their weight as it was."),),
    explains=("loss_plateau", "unchanged_weights"),
)
