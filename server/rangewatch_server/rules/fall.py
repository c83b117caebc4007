"""Gradients that fell at some time of the run, quickly, and have been low ever since. Read from the pyramid's columns.

A column of 8 steps, 64, 512 and so on holds the largest magnitude of its steps. The levels are looked at one after the
other until one covers the run: how long ago it was does not matter, and a fall is quick within one column of its level.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from rangewatch_server.pyramid import FANOUT, RANGES, SERIES_PART
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.recent import Array

COLUMNS = 512
"""Of each level, the last ones: 4,096 steps of the finest."""

FEWEST, BEFORE = 4, 8
"""Columns before a fall, and the one it is in, whose median tells how high it was: at least, and at most."""

MOST = 16
"""Gradients that are looked at closely: those that are the furthest below what they once were."""

CHANCE = 1e-6
"""That as many low columns follow each other by chance, going by their share before: some gradients are often 0."""

ZERO_BITS = -200.0
"""What an all-zero gradient counts as: below every number of float32."""


class Fall(msgspec.Struct, frozen=True):
    """Of the gradient at `place`: `bits` beyond what the others fell by, in or behind the column that begins at
    `step`."""

    place: int
    bits: float
    step: int


def falls(evidence: Evidence, tensors: Array, now: Array, least: float) -> Iterator[Fall]:
    """Those of `tensors` (t,) that fell by `least` bits or more. `now`: (t,) bits that none of their last is above."""
    told: set[int] = set()
    for pieces in _passes(evidence):
        read = [_heights(evidence, tensors, *piece) for piece in pieces]
        steps, bits = (np.concatenate(each, axis=-1) for each in zip(*read, strict=True))
        for place in _candidates(bits, now, least):
            if place not in told and (fall := _fall(bits, now, place, least)) is not None:
                told.add(place)
                yield Fall(place, fall[0], max(evidence.start, int(steps[fall[1]])))


def _passes(evidence: Evidence) -> Iterator[list[tuple[int, int, int]]]:
    """Columns to look at together, as (level, start, stop): the last ones of each level, from the finest on; and of all
    of the run, its beginning in finer columns than the rest: a fall at step 100 of a million is quick in those only."""
    level, stop = 0, evidence.whole_stop
    while True:
        level += 1
        size = FANOUT**level
        start = (-(-stop // size) - COLUMNS) * size
        if start <= evidence.start:
            break
        yield [(level, start, stop)]
    thinned = evidence.run.thinned(list(evidence.ranks), evidence.start, stop)
    finest = 1 if thinned is None else min(level, int(np.log2(thinned.per)) // int(np.log2(FANOUT)))
    levels, fine = range(finest, level + 1), COLUMNS // FANOUT
    ends = [(evidence.start // FANOUT**each + fine) * FANOUT**each for each in levels[1:]]
    pieces = zip(levels, [evidence.start, *ends], [*ends, stop], strict=True)
    yield [(each, low, min(high, stop)) for each, low, high in pieces if low < stop]


def _heights(evidence: Evidence, tensors: Array, level: int, start: int, stop: int) -> tuple[Array, Array]:
    """(n,) first steps, and (t, n) log2 of the largest magnitude in each column, the loss scale taken out; NaN: not
    observed.

    Of a scale that changed within a column the largest counts: the column is then lower than it was, not higher.
    """
    found = evidence.run.slice(RANGES, list(evidence.ranks), level, start, stop, ("call_count", "amax"), tensors)
    calls, amax = (np.asarray(found.columns[name], np.float64) for name in ("call_count", "amax"))
    steps = (found.first + np.arange(calls.shape[1])) * FANOUT**level
    with np.errstate(divide="ignore"):
        bits = np.where(calls > 0, np.where(amax > 0, np.log2(amax), ZERO_BITS), np.nan)
    names = evidence.run.names()
    if not evidence.is_loss_scaled or "loss_scale" not in names.series:
        return steps, bits
    row = np.array([names.series["loss_scale"]])
    scale = evidence.run.slice(SERIES_PART, list(evidence.ranks), level, start, stop, ("max",), row).columns["max"][0]
    shift = np.log2(scale, out=np.full(len(scale), np.nan), where=np.isfinite(scale) & (scale > 0))
    return steps, np.where(bits == ZERO_BITS, bits, bits - shift)


def _candidates(bits: Array, now: Array, least: float) -> list[int]:
    """Places of gradients that are so far below a column of theirs."""
    highest = np.where(np.isfinite(bits), bits, -np.inf).max(axis=1, initial=-np.inf)
    could = np.flatnonzero(np.isfinite(now) & (highest - now >= least))
    return could[np.argsort(now[could] - highest[could], kind="stable")][:MOST].tolist()


def _fall(bits: Array, now: Array, place: int, least: float) -> tuple[float, int] | None:
    """By how much it fell where it fell the most, less the median of what all fell by; and that column. None: it has
    not, or it may come back."""
    there = np.flatnonzero(np.isfinite(bits[place]))
    row = bits[place][there]
    if len(row) < FEWEST:
        return None
    smooth = _without_spikes(row)
    windows = np.lib.stride_tricks.sliding_window_view(np.r_[np.full(BEFORE - 1, np.nan), smooth], BEFORE)
    heights = np.minimum(smooth, _medians(windows))
    drops = heights - np.maximum(np.append(np.maximum.accumulate(smooth[:0:-1])[::-1], -np.inf), now[place])
    at = int(drops[FEWEST - 1 :].argmax()) + FEWEST - 1
    column = int(there[at])
    others = _medians(bits[:, max(0, column - BEFORE + 1) : column + 1]) - now
    fell = float(drops[at] - max(0.0, float(np.median(others[np.isfinite(others)]))))
    share_low = (np.count_nonzero(row[:at] <= heights[at] - least) + 0.5) / (at + 1)
    return (fell, column) if fell >= least and share_low ** (len(row) - 1 - at) <= CHANCE else None


def _without_spikes(row: Array) -> Array:
    """Each the median of itself and its two neighbours: a spike of one column goes, an edge stays where it is."""
    wide = np.pad(row, 1, mode="edge")
    return np.median(np.stack([wide[:-2], wide[1:-1], wide[2:]]), axis=0)


def _medians(values: Array) -> Array:
    """(t,) medians of those of (t, n) that are not NaN; NaN where there is none."""
    count = np.isfinite(values).sum(axis=1)
    ordered, row, last = np.sort(values, axis=1), np.arange(len(values)), values.shape[1] - 1
    lower, upper = ordered[row, np.maximum(count - 1, 0) // 2], ordered[row, np.minimum(count // 2, last)]
    return (lower + upper) / 2
