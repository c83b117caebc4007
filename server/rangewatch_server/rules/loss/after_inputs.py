"""Whether the loss rises where what the model is given, or its targets, become another size for good, where a mask
leaves another share of its places for good, where code other than the optimizer has written to the weights, which it
seldom does, or where a learning rate became far higher than it ever was. Where it is known when to expect it, fewer
values show a rise than at any other step: a loss that falls hides its own jumps for tens of steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from rangewatch.wire.events import StateLoaded
from rangewatch_server.numerics.pyramid import FANOUT, level_for
from rangewatch_server.rules.evidence import SCAN_COLUMNS, Evidence
from rangewatch_server.rules.inputs import INPUTS
from rangewatch_server.rules.loss.series import RATES, TARGETS, WRITTEN
from rangewatch_server.rules.loss.spike.bands import INPUT_BITS, OUT_DEVIATIONS
from rangewatch_server.rules.loss.spike.changed_mask import SHARES, are_other
from rangewatch_server.rules.recent import Array
from rangewatch_server.rules.trend import MAD

HISTORY, FEWEST = 64, 16
"""Readings before that show what is usual, and how many there must be."""

LASTING = 4
"""Readings from the change on that must all be beyond it."""

PLACES = 4
"""Columns of a long run in which single steps are read: the first that differ."""

BEFORE, RECENT, AFTER, LEAST, PART = 16, 8, 8, 3, 0.75
"""Values of the loss before the change that those since must be above, those of them whose median is usual, those since
that are looked at, and how many and which part of these must be high."""

MOST_WRITES, STEPS = 4, 4_096
"""Writes to the weights in the first steps of a run; more are a habit, see `after_writes`."""

LEAST_SHARE = 1e-3
"""By which the share that a mask leaves must change from one step to the next to be looked at."""

RISE, RISE_OF_RATE = 0.5, 0.1
"""Part of its usual value by which the loss must rise; behind a rate that was never so high less says as much."""

FAR_RISE, MOST_GROUPS = 10.0, 16
"""How many times as high as ever before a learning rate must be from one step to the next, and parameter groups."""


class Changed(msgspec.Struct, frozen=True):
    """At `step`: the loss was `usual` before, with a standard deviation of `scatter`, then `level`: `count` of the `of`
    values since are above all of the `BEFORE` ones."""

    step: int
    usual: float
    scatter: float
    level: float
    count: int
    of: int


def first_change(evidence: Evidence, name: str) -> Changed | None:
    """The first change of inputs, targets, masks or rates, or write, with which the series `name` rose; None where
    there is none."""
    steps = {at for each in (*INPUTS, TARGETS) if evidence.has_series(each) for at in _changes(evidence, each)}
    places = [(step, RISE) for step in {*steps, *_masks(evidence), *_writes(evidence)}]
    places += [(step + 1, RISE_OF_RATE) for step in _raised_rates(evidence)]  # that step's update is the first with it
    found = (_rise(evidence, name, step, rise) for step, rise in sorted(places))
    return next((each for each in found if each is not None), None)


def _masks(evidence: Evidence) -> Iterator[int]:
    """Of the first steps of the run. Shares that differ in each step are looked at together: 4,096 of them take 1 ms,
    and 23 one by one."""
    start, stop = evidence.start, min(evidence.start + STEPS, evidence.whole_stop)
    for name in (each for each in SHARES if evidence.has_series(each)):
        values = evidence.series(name, start, stop)
        at = np.flatnonzero(np.isfinite(values))
        known, count = values[at], len(at) - LASTING + 1
        if count <= FEWEST:
            continue
        before = np.lib.stride_tricks.sliding_window_view(np.r_[np.full(HISTORY, np.nan), known], HISTORY)[:count]
        since = np.lib.stride_tricks.sliding_window_view(known, LASTING)
        most, least = np.fmax.reduce(before, axis=1), np.fmin.reduce(before, axis=1)
        is_other = are_other(least, most, since.min(axis=1), since.max(axis=1))
        for place in (FEWEST + np.flatnonzero(is_other[FEWEST:])).tolist():
            if abs(known[place] - known[place - 1]) > LEAST_SHARE:
                yield start + int(at[place])


def _raised_rates(evidence: Evidence) -> set[int]:
    """Of the first steps of the run. A warm restart goes back to a rate that there was."""
    start, stop = evidence.start, min(evidence.start + STEPS, evidence.whole_stop)
    names = [*RATES, *(f"lr_group_{at}" for at in range(MOST_GROUPS))]
    found: set[int] = set()
    for values in (evidence.series(each, start, stop) for each in names if evidence.has_series(each)):
        before = np.fmax.accumulate(np.where(np.isfinite(values), values, 0.0))[:-1]
        with np.errstate(invalid="ignore"):
            is_far = (values[1:] >= FAR_RISE * before) & (before > 0) & np.isfinite(values[:-1])
        found.update((start + 1 + np.flatnonzero(is_far)).tolist())
    return {each for each in found if each - start >= FEWEST}


def _writes(evidence: Evidence) -> list[int]:
    """Of the first steps of the run, where there are few."""
    if not evidence.has_series(WRITTEN):
        return []
    start = evidence.start
    written = np.nan_to_num(
        evidence.largest(WRITTEN, start, min(start + STEPS, evidence.whole_stop)), nan=np.inf, neginf=0.0
    )
    at = np.flatnonzero(written > 0)
    if len(at) > MOST_WRITES:
        return []
    # Who loads an optimizer's state goes back to a snapshot, with a loss that was higher.
    loaded = {event.step for event, _ in evidence.details(StateLoaded)}
    return [each for each in (start + at).tolist() if not loaded & {each - 1, each, each + 1}]


def _changes(evidence: Evidence, series: str) -> list[int]:
    start, stop = evidence.start, evidence.whole_stop
    level = level_for(stop - start, SCAN_COLUMNS)
    if level == 0:
        return _in_steps(evidence, series, start, stop)
    size, first = FANOUT**level, start // FANOUT**level
    bits = _bits(evidence.largest(series, start, stop, level))
    places = np.flatnonzero(np.isfinite(bits))
    found: list[int] = []
    for at in (places[1:][np.abs(np.diff(bits[places])) > INPUT_BITS])[:PLACES].tolist():
        low = max(start, (first + at) * size - min(size, SCAN_COLUMNS))  # it may have fallen within the column before
        found += _in_steps(evidence, series, low, min(stop, (first + at) * size + min(size, SCAN_COLUMNS)))
    return found


def _in_steps(evidence: Evidence, series: str, start: int, stop: int) -> list[int]:
    low = max(evidence.start, start - HISTORY)
    bits = _bits(evidence.largest(series, low, min(evidence.whole_stop, stop + HISTORY)))
    at = np.flatnonzero(np.isfinite(bits))
    values, found = bits[at], []
    for place in (np.flatnonzero(np.abs(np.diff(values)) > INPUT_BITS) + 1).tolist():
        before, since = values[max(0, place - HISTORY) : place], values[place : place + LASTING]
        if len(before) < FEWEST or len(since) < LASTING:
            continue
        away = max(INPUT_BITS, OUT_DEVIATIONS * MAD * float(np.median(np.abs(before - np.median(before)))))
        if since.min() > before.max() + away or since.max() < before.min() - away:
            found.append(low + int(at[place]))
    return found


def _bits(values: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        bits: Array = np.where(values > 0, np.log2(values), np.nan)
    return bits


def _rise(evidence: Evidence, name: str, step: int, rise: float) -> Changed | None:
    values = evidence.series(name, max(evidence.start, step - 2 * BEFORE), min(evidence.whole_stop, step + AFTER))
    at = step - max(evidence.start, step - 2 * BEFORE)
    before, since = values[:at][np.isfinite(values[:at])][-BEFORE:], values[at:][np.isfinite(values[at:])]
    if len(before) < BEFORE or len(since) < LEAST:
        return None
    usual = float(np.median(before[-RECENT:]))
    is_high = since > max(float(before.max()), usual + rise * abs(usual))
    counts = np.cumsum(is_high)
    shown = np.flatnonzero(counts >= np.maximum(LEAST, PART * np.arange(1, len(since) + 1)))
    if not is_high[0] or not len(shown):
        return None
    of = int(shown[0]) + 1  # so that it stays what it is, whatever comes later
    scatter = MAD * float(np.median(np.abs(before - np.median(before))))
    return Changed(step, usual, scatter, float(np.median(since[:of][is_high[:of]])), int(counts[of - 1]), of)
