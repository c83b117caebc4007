"""Whether the loss rises each time that code other than the optimizer has changed the weights. Where it is known when
to expect it, a rise is no chance that would be one at any other step.
"""

from __future__ import annotations

import msgspec
import numpy as np

from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import WRITTEN
from rangewatch_server.rules.recent import Array
from rangewatch_server.rules.trend import MAD

STEPS = 4_096
"""First steps of a run in which it is searched for."""

SELDOM = 1 / 32
"""Part of the steps, at most, in which weights are written: what does so more often belongs to the training."""

BEFORE, AFTER = 6, 3
"""Values of the loss before a write and from it on whose means are compared."""

HISTORY, FEWEST = 64, 24
"""Steps before a write at which the same difference shows what is usual, and how many there must be."""

LEAST_WRITES = 2
"""One write with a rise is no habit: such a jump is judged like any other."""

RISE = 0.1
"""Part of the loss by which it must rise each time."""

EACH, ALL = 2.0, 5.0
"""Standard deviations above what is usual, of each write, and of all together over the root of their number."""


class Written(msgspec.Struct, frozen=True):
    """The first write, at `step`: the loss was `usual` before, with a standard deviation of `scatter`, then `level`.

    `judged`: writes that could be judged, after each of which it rose.
    """

    step: int
    usual: float
    scatter: float
    level: float
    judged: int


def first_write(evidence: Evidence, name: str) -> Written | None:
    """Of the series `name`; None where there is no write, or the loss does not rise with each."""
    if not evidence.has_series(WRITTEN):
        return None
    start, stop = evidence.start, min(evidence.start + STEPS, evidence.whole_stop)
    written = np.nan_to_num(evidence.largest(WRITTEN, start, stop), nan=np.inf, neginf=0.0)
    at = np.flatnonzero(written > 0)
    if not len(at) or len(at) > SELDOM * len(written):
        return None
    return of_writes(start, evidence.series(name, start, stop), at)


def of_writes(start: int, losses: Array, writes: Array) -> Written | None:
    """The same of (n,) losses of the steps from `start` on, and the places among them at which weights were written."""
    rises, marks = _rises(losses), []
    for at in writes.tolist():
        if at + AFTER > len(losses) or not np.isfinite(rises[at]):
            continue
        places = np.arange(max(0, at - HISTORY), at - AFTER + 1)
        apart = np.abs(places[:, None] - writes[writes < at]).min(axis=1, initial=HISTORY)
        usual = rises[places[(apart > BEFORE) & np.isfinite(rises[places])]]
        if len(usual) < FEWEST:
            continue
        scatter = MAD * float(np.median(np.abs(usual - np.median(usual))))
        mark = (rises[at] - float(np.median(usual))) / scatter if scatter > 0 else 0.0
        is_rise = rises[at] >= RISE * abs(float(np.mean(losses[at - BEFORE : at])))
        if not is_rise or mark < EACH or rises[at] <= usual.max():
            return None
        marks.append((at, mark))
    if len(marks) < LEAST_WRITES or sum(mark for _, mark in marks) / np.sqrt(len(marks)) < ALL:
        return None
    at = marks[0][0]
    before, since = losses[at - BEFORE : at], losses[at : at + AFTER]
    return Written(start + at, float(before.mean()), float(before.std()), float(since.mean()), len(marks))


def _rises(losses: Array) -> Array:
    """(n,) at each step by how much the mean of the losses from it on is above that of those before; NaN: unknown."""
    rises = np.full(len(losses), np.nan)
    if len(losses) >= BEFORE + AFTER:
        windows = np.lib.stride_tricks.sliding_window_view(losses, BEFORE + AFTER)
        rises[BEFORE : len(losses) - AFTER + 1] = windows[:, BEFORE:].mean(axis=1) - windows[:, :BEFORE].mean(axis=1)
    return rises
