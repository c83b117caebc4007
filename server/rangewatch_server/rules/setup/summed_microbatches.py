"""The microbatches of a step become more, and their losses are not divided by how many they are: gradients rise with
their number, and updates with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from rangewatch_server.core import deadline
from rangewatch_server.numerics.pyramid import FANOUT, RANGES, level_for
from rangewatch_server.rules.evidence import SCAN_COLUMNS, Evidence
from rangewatch_server.rules.loss.series import loss_name, rates
from rangewatch_server.rules.optimizers import newest_optimizers
from rangewatch_server.rules.phrases import loss_called, place
from rangewatch_server.rules.recent import Array, only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

PROBES = 8
"""Gradients by which backwards are counted."""

BEFORE, FEWEST, AFTER = 16, 8, 5
"""Steps of one number of backwards before, at least so many, and after: fixed, so that a finding stays as it was."""

MOST_PLACES = 16
"""Columns with a rise that are looked at step by step, the first ones."""

LEAST, NOISE, MOST = 1.3, 0.8, 1.5
"""A gradient that is noise rises by the root of the number, one that is not by the number itself. So it must rise by
`LEAST`, by `NOISE` times the root, and by `MOST` times the number at most. Of a mean it falls, or stays."""

SHARE = 0.8
"""Of all gradients, that must do so."""

STEADY = (0.6, 1.6)
"""Part of what it was that the loss may be, or, where microbatches are summed in it as well, that times the number."""

SAME_RATE = 1.3
"""A learning rate that changes by more at that step belongs to a plan."""

PLAIN = ("SGD", "ASGD")
"""Optimizers whose updates are as large as their gradients; most others divide by them."""


class Growth(msgspec.Struct, frozen=True):
    """At `step` backwards a step went from `few` to `many`, and gradients rose by `factor`, `rose` of `known`."""

    step: int
    few: int
    many: int
    factor: float
    rose: int
    known: int
    loss: float


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first such step."""
    gradients = tensors_of(evidence, "grad")
    if not len(gradients) or not evidence.ranks:
        return
    for step, few, many in _growths(evidence, evidence.ranks[0], gradients):
        growth = _judged(evidence, evidence.ranks[0], gradients, step, few, many)
        if growth is not None:
            yield _finding(evidence, growth, limits)
            return


def _growths(evidence: Evidence, rank: int, gradients: Array) -> Iterator[tuple[int, int, int]]:
    """Each step at which a rank's backwards become twice as many or more and stay so, with both numbers."""
    start, stop = evidence.start, evidence.whole_stop
    level = level_for(stop - start, SCAN_COLUMNS)
    size = FANOUT**level
    probes = gradients[np.unique(np.linspace(0, len(gradients) - 1, PROBES).astype(int))]
    first, counts = _calls(evidence, rank, probes, level, start, stop)
    if not level:
        yield from _steps(first, counts)
        return
    edges = np.clip((first + np.arange(len(counts) + 1)) * size, start, stop)
    mean = counts / np.maximum(1, np.diff(edges))
    last = -1
    for column in np.flatnonzero(mean[1:] > 1.05 * mean[:-1])[:MOST_PLACES].tolist():
        deadline.check()
        if edges[column + 2] - edges[column] > SCAN_COLUMNS * FANOUT:
            return  # steps that go on far away: too many to be read one by one
        low = max(start, int(edges[column]) - BEFORE)
        high = min(stop, int(edges[column + 2]) + AFTER)
        for step, few, many in _steps(*_calls(evidence, rank, probes, 0, low, high)):
            if step > last:
                last = step
                yield step, few, many


def _calls(evidence: Evidence, rank: int, probes: Array, level: int, start: int, stop: int) -> tuple[int, Array]:
    """The first column, and (n,) how often the gradient that was accumulated most often was, in each."""
    if start >= stop:
        return start, np.zeros(0)
    block = evidence.run.slice(RANGES, [rank], level, start, stop, ("call_count",), probes)
    return block.first, np.asarray(block.columns["call_count"], np.float64).max(axis=0)


def _steps(first: int, counts: Array) -> Iterator[tuple[int, int, int]]:
    there = np.flatnonzero(counts > 0)
    known = counts[there]
    for at in (1 + np.flatnonzero(known[1:] >= 2 * known[:-1])).tolist():
        before, after = known[max(0, at - BEFORE) : at], known[at : at + AFTER]
        if len(before) >= FEWEST and len(after) == AFTER and np.ptp(before) == np.ptp(after) == 0:
            yield first + int(there[at]), int(before[-1]), int(after[0])


def _judged(evidence: Evidence, rank: int, gradients: Array, step: int, few: int, many: int) -> Growth | None:
    """None where gradients did not rise so, the loss did, or the learning rate was changed with it."""
    low, high, times = max(evidence.start, step - BEFORE), min(evidence.whole_stop, step + AFTER), many / few
    name = loss_name(evidence)
    if name is None or _is_planned(evidence, step):
        return None
    loss = _rise(evidence.series(name, low, high, rank)[None], step - low)[0]
    if not any(STEADY[0] * each <= loss <= STEADY[1] * each for each in (1.0, times)):
        return None
    columns = ("call_count", "amax", "nan_count", "inf_count")
    block = evidence.run.slice(RANGES, [rank], 0, low, high, columns, gradients)
    calls, amax, nans, infs = (np.asarray(block.columns[each], np.float64) for each in columns)
    values = np.where((calls > 0) & (nans + infs == 0), amax, np.nan)
    if evidence.is_loss_scaled:
        values = values / evidence.series("loss_scale", low, high, rank)
    rises = _rise(values, step - low)
    rises = rises[np.isfinite(rises)]
    least = max(LEAST, NOISE * float(np.sqrt(times)))
    rose = (rises >= least) & (rises <= MOST * times)
    if not len(rises) or rose.mean() < SHARE:
        return None
    return Growth(step, few, many, float(np.median(rises)), int(rose.sum()), len(rises), float(loss))


def _rise(values: Array, at: int) -> Array:
    """(t,) of (t, n): the median from place `at` on by that before it; NaN where too few are known or above 0."""
    values = np.where(np.isfinite(values) & (values > 0), values, np.nan)
    known = np.isfinite(values)
    is_known = (known[:, :at].sum(axis=1) >= FEWEST // 2) & (known[:, at:].sum(axis=1) >= AFTER // 2)
    rises = np.full(len(values), np.nan)
    if is_known.any():
        chosen = values[is_known]
        rises[is_known] = np.nanmedian(chosen[:, at:], axis=1) / np.nanmedian(chosen[:, :at], axis=1)
    return rises


def _is_planned(evidence: Evidence, step: int) -> bool:
    """Whether the learning rate jumps at the step, give or take one."""
    rate = rates(evidence, step - 2, step + 2)
    rate = rate[np.isfinite(rate) & (rate > 0)]
    return len(rate) > 1 and float(rate.max() / rate.min()) >= SAME_RATE


def _finding(evidence: Evidence, growth: Growth, limits: Thresholds) -> Finding:
    rank, times = only_rank(evidence), growth.many / growth.few
    classes = newest_optimizers(evidence).classes
    is_plain = any(each in PLAIN for each in classes)
    is_clipped = evidence.has_series("clipped_norm")
    is_loud = is_plain and not is_clipped and times >= limits["times"]
    effect = (
        f"Updates of {', '.join(classes)} are as large as their gradients: it is as if the learning rate had been "
        f"raised {growth.factor:.2g} times."
        if is_plain and not is_clipped
        else "Gradients are clipped by their norm: where that is at its limit, updates are as large as before."
        if is_clipped
        else f"Updates by {', '.join(classes) or 'an optimizer that is not known'} need not be larger for it: such as "
        "Adam divides by the size of gradients."
    )
    name = loss_name(evidence) or ""
    summed = ", as microbatches are summed in it as well" if growth.loss > STEADY[1] else ""
    is_known = np.isfinite(rates(evidence, growth.step - 2, growth.step + 2)).sum() > 1
    rate = "The learning rate did not change at that step. " if is_known else ""
    return Finding(
        severity="" if is_loud else "info",
        rank=rank, step=growth.step, subject="microbatches",
        summary=f"{place(growth.step, rank)}: from here on a step has {growth.many} backwards in place of "
        f"{growth.few}, and gradients are {growth.factor:.2g} times as large: microbatches are summed, not averaged.",
        evidence=(
            f"Of {growth.known} gradients {growth.rose} rose with it, in the {AFTER} steps from there on against the "
            f"{BEFORE} before (medians of their largest magnitudes). Divided by the number of microbatches, they would "
            "be as large as before or smaller.",
            f"{'T' + loss_called(name)[1:]} was {growth.loss:.2g} times what it had been{summed}. {rate}{effect}",
            "Cause (likely): the loss of each microbatch is not divided by how many there are. Against that: the sum "
            "is meant, as where a second loss has a backward of its own from here on.",
        ),
        remedy=(
            Remedy(
                "Divide the loss of each microbatch by the number of microbatches in the step, right before its "
                "backward; or divide the learning rate by it.",
                f"microbatches = {growth.many}  # how many before the next optimizer.step()\n"
                "(loss / microbatches).backward()",
                "gradients rose with the number of backwards in a step",
            ),
        ),
        facts={
            "before": growth.few, "after": growth.many, "factor": growth.factor, "loss_factor": growth.loss,
            "rose": growth.rose, "known": growth.known, "cause_class": "learning_rate",
        },
    )  # fmt: skip


RULE = Rule(
    name="summed_microbatches",
    title="Microbatches are summed",
    severity="warning",
    explanation="At one step the backwards before an update became several times as many, as where gradient "
    "accumulation is ramped up, and nearly all gradients rose with their number while the loss did not: the loss of a "
    "microbatch is not divided by how many there are. With SGD it is as if the learning rate had been raised as much. "
    "Info where updates need not follow, as by Adam or behind a clip by the norm, and where the backwards are less "
    "than four times as many: a second loss with a backward of its own may be meant. Nothing is said where the "
    "learning rate changed at that step: then it was planned.",
    check=check,
    thresholds=(Threshold("times", 4.0, "times as many", "From here on it is a warning and no info."),),
    explains=("exploding_gradient", "loss_spike", "short_spike", "update_ratio", "learning_lost"),
    leads_to=("first_nonfinite", "loss_nonfinite"),
)
