"""What was odd about the learning rate before a step: it was negative, jumped, or went on growing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from rangewatch.wire.events import Optimizers
from rangewatch_server.rules.evidence import WINDOW, Evidence
from rangewatch_server.rules.loss.series import RATES
from rangewatch_server.rules.nonfinite.causes import SHOWN
from rangewatch_server.rules.recent import Array

HISTORY = 64
"""Steps before a jump that show what is usual."""

RISE, SOON = 1.5, 8
"""How many times as high as ever before a learning rate must be that had a part in it, and for how many steps."""

FAR_RISE = 10.0
"""One that rose by so much, and stayed so, may have had a part in it for 64 steps."""

FEW = 16
"""Readings of a run that is not as old."""

GROWN = 4.0
"""How many times as high as 64 steps before a rate must be that goes on growing."""

MOST_GROUPS = 16


class Rate(msgspec.Struct, frozen=True):
    """A learning rate that went from `low` to `high` from `step` on; `text` says how, `weight` what it speaks for;
    `group`: the parameter group whose it is, None of all; `first`: the first parameter in it, "": not known."""

    step: int
    low: float
    high: float
    text: str
    weight: float = 0.9
    group: int | None = None
    first: str = ""


def odd_rate(evidence: Evidence, step: int) -> Rate | None:
    """What was odd about the learning rate right before the step: it was negative, jumped, or went on growing. Of
    several parameter groups the series that is logged is one's, or the largest: one that jumped alone is named first.

    An update is of its own step's rate, so that of `step` comes later; but of several optimizers, as of a GAN, one may
    have stepped before the backward of the other in the same step.
    """
    low, stop = max(evidence.start, step - WINDOW), step + _has_several_optimizers(evidence)
    logged = []
    for name in RATES:
        if evidence.has_series(name):
            values = evidence.series(name, low, stop)
            there = np.flatnonzero(np.isfinite(values))
            logged.append((low + there, values[there]))
    negative = next((known for each in logged if (known := _negative(*each)) is not None), None)
    known = negative or _of_group(evidence, step, logged)
    for steps, values in logged:
        known = known or _jumped(steps, values, step) or _growing(steps, values, step)
    return known


def _of_group(evidence: Evidence, step: int, logged: Sequence[tuple[Array, Array]]) -> Rate | None:
    """The parameter group whose rate rose within a step, most of all and by far more than another's, and stayed so: the
    agent records all of them then, in that step and the one before. `logged`: steps and values of what holds one rate,
    which is the largest where the agent has read it."""
    low, rows = max(evidence.start, step - HISTORY), []
    for at in range(MOST_GROUPS):
        if not evidence.has_series(name := f"lr_group_{at}"):
            break
        rows.append(evidence.series(name, low, step))
    if len(rows) < 2:
        return None
    values = np.array(rows)
    with np.errstate(divide="ignore", invalid="ignore"):
        times = np.where(values[:, :-1] > 0, values[:, 1:] / values[:, :-1], np.nan)
    for place in range(times.shape[1])[::-1]:
        column = times[:, place]
        known = np.flatnonzero(np.isfinite(column))
        if len(known) < 2 or column[known].max() < RISE * max(column[known].min(), 1.0):
            continue
        at, since = int(known[np.argmax(column[known])]), low + place + 1
        ago, before, after = step - since, float(values[at, place]), float(values[at, place + 1])
        later = values[at, place + 1 :]
        has_fallen = later[np.isfinite(later)].min() < after / RISE or any(
            _was_largest(steps, rates, since, after) and rates[steps >= since].min() < after / RISE
            for steps, rates in logged
        )
        if has_fallen or (ago > SOON and column[at] < FAR_RISE):
            continue
        first = _first_name(evidence, at)
        text = (
            f"The learning rate of parameter group {at}{f' ({first})' if first else ''} rose from {before:.3g} to "
            f"{after:.3g} at step {since}, {ago_text(since, step)}, and that of another group did not."
        )
        return Rate(since, before, after, text, 0.9 if ago <= SOON else SHOWN, at, first)
    return None


def _was_largest(steps: Array, rates: Array, since: int, rate: float) -> bool:
    """Whether what was logged at that step is this group's rate, or a higher one."""
    return bool((rates[steps == since] >= rate * (1 - 1e-6)).any())


def _first_name(evidence: Evidence, group: int) -> str:
    named = [optimizers.groups for _, optimizers in evidence.details(Optimizers) if len(optimizers.groups) > group]
    return named[-1][group] if named else ""


def group_rates(evidence: Evidence, step: int) -> dict[str, float]:
    """Of several parameter groups each one's learning rate at that step, by its name or first parameter; {}: not read,
    or not known by name."""
    rows = [
        float(evidence.series(name, step, step + 1)[0])
        for name in (f"lr_group_{at}" for at in range(MOST_GROUPS))
        if evidence.has_series(name)
    ]
    names = [_first_name(evidence, at) for at in range(len(rows))]
    is_known = len(rows) > 1 and all(names) and len(set(names)) == len(names) and np.isfinite(rows).all()
    return dict(zip(names, rows, strict=True)) if is_known else {}


def _has_several_optimizers(evidence: Evidence) -> bool:
    return any(len(optimizers.classes) > 1 for _, optimizers in evidence.details(Optimizers))


def _negative(steps: Array, rates: Array) -> Rate | None:
    """It is, at the last of (n,) steps."""
    if not len(rates) or not rates[-1] < 0:
        return None
    before = np.flatnonzero(rates >= 0)
    at = int(before[-1]) + 1 if len(before) else 0
    low = float(rates[at - 1]) if at else float(rates[0])
    since = f"since step {steps[at]} ({rates[-1]:.3g} right before it)"
    text = f"The learning rate has been negative {since}: each update climbs."
    return Rate(int(steps[at]), low, float(rates[-1]), text, 0.93)


def _jumped(steps: Array, rates: Array, step: int) -> Rate | None:
    for at in range(len(rates))[::-1]:
        before, ago = rates[:at], step - int(steps[at])
        if ago > HISTORY or len(before) < 3:
            return None
        times = rates[at] / before.max() if before.max() > 0 else 0.0
        if times >= RISE and (ago <= SOON or (times >= FAR_RISE and rates[at:].min() >= rates[at] / RISE)):
            rose = f"rose from {before[-1]:.3g} to {rates[at]:.3g} at step {steps[at]}"
            text = f"The learning rate {rose}, {ago_text(int(steps[at]), step)}."
            return Rate(int(steps[at]), float(before[-1]), float(rates[at]), text, 0.9 if ago <= SOON else SHOWN)
    return None


def _growing(steps: Array, rates: Array, step: int) -> Rate | None:
    """It has not fallen for `HISTORY` steps, or since the first, and is far higher than before them."""
    last = rates[steps >= step - HISTORY]
    is_young = len(steps) > 0 and len(last) == len(rates)  # a warm-up from the first step on
    if (
        len(last) < (FEW if is_young else HISTORY // 2)
        or not last[0] > 0
        or (np.diff(last) < 0).any()
        or last[-1] < max(rates)
    ):
        return None
    if last[-1] < GROWN * last[0]:
        return None
    since = int(steps[steps >= step - HISTORY][0])
    text = (
        f"The learning rate went on growing, from {last[0]:.3g} at step {since} to {last[-1]:.3g} right before it, the "
        "highest of the run so far."
    )
    return Rate(since, float(last[0]), float(last[-1]), text, 0.79)


def ago_text(then: int, now: int) -> str:
    """Such as "3 steps before"."""
    steps = now - then
    return "in the same step" if not steps else f"{steps} step{'' if steps == 1 else 's'} before"
