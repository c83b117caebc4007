"""The first lasting rise of a gradient in a run, however long ago: from coarse columns down to single steps.

A rise is judged by what came before it alone, so that the end of a run says of it what was said when it came.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from rangewatch_server.core import deadline
from rangewatch_server.numerics.pyramid import FANOUT, RANGES, SERIES_PART, level_for
from rangewatch_server.rules.evidence import SCAN_COLUMNS, WINDOW, Evidence
from rangewatch_server.rules.recent import Array

LASTING = 5
"""Points in a row that must all be high."""

HISTORY, EARLY_HISTORY = 32, 16
"""Points before them that show what is usual; with fewer, down to the second, it must rise by `EARLY_BITS` more."""

EARLY_BITS = 2.0

USUAL = 0.95
"""Quantile of the history that they are compared with: spikes of one step in 20 are usual."""

BLOCK = 32
"""Single steps that are looked at together first."""

BEFORE = 8
"""Columns, or blocks, whose lowest maximum is near what is usual: what is not far above it is no rise."""

SLACK = 1.0
"""Bits by which that may be off."""

MOST_PLACES = 16
"""Columns of single steps in which rises are searched for, the first ones of those that have a high value."""


NEGLIGIBLE = 0.01
"""Of the median gradient at that step. A smaller one that rises is as a rule rounding: that of a bias before a
BatchNorm is 0 by its formula, and went from 4e-8 to 4e-6 in a training whose other gradients were 1e-2."""


class Rise(msgspec.Struct, frozen=True):
    """Of tensor `tensor` from `step` on, seen at `seen`, the last of its first high points; `usual` in bits."""

    tensor: int
    step: int
    seen: int
    usual: float
    bits: float


def first_rise(evidence: Evidence, tensors: Array, bits: float) -> list[Rise]:
    """All that rose by `bits` or more at the first step at which any did, the largest first; [] where none did."""
    level = level_for(evidence.whole_stop - evidence.start, SCAN_COLUMNS)
    for count, (start, stop, rows) in enumerate(_places(evidence, tensors, bits, level, evidence.start, None)):
        if count == MOST_PLACES:
            break
        rises = _judged(evidence, tensors[rows], bits, start, stop)
        for seen in sorted({each.seen for each in rises}):
            block = evidence.run.slice(RANGES, list(evidence.ranks), 0, seen, seen + 1, ["amax"], tensors)
            amax = np.asarray(block.columns["amax"], np.float64)[:, 0]
            large = tensors[amax >= NEGLIGIBLE * np.median(amax[amax > 0])] if (amax > 0).any() else tensors
            first = [each for each in rises if each.seen == seen and each.tensor in large]
            if first:
                return sorted(first, key=lambda each: (-each.bits, each.tensor))
    return []


def _places(
    evidence: Evidence, tensors: Array, bits: float, level: int, start: int, stop: int | None
) -> Iterator[tuple[int, int, Array]]:
    """Steps [start, stop) in which some tensors (places in `tensors`) have high values, ascending."""
    deadline.check()
    end = evidence.whole_stop if stop is None else stop
    size = FANOUT**level
    low = max(evidence.start, start - BEFORE * size) if level else max(evidence.start, start - BEFORE * BLOCK)
    if low >= end:
        return
    first, largest = _largest(evidence, tensors, level, low, end)
    if not level:
        edges = np.arange(0, largest.shape[1], BLOCK)
        largest, size = np.maximum.reduceat(largest, edges, axis=1) if len(edges) else largest, BLOCK
    for column in range(1, largest.shape[1]):
        before = largest[:, max(0, column - BEFORE) : column]
        least = np.where(np.isneginf(before), np.inf, before).min(axis=1)
        high = np.flatnonzero(largest[:, column] >= least + bits - SLACK)
        at = (first + column) * size if level else first + column * size
        if not len(high) or at + size <= start:
            continue
        if level:
            for inner in _places(evidence, tensors[high], bits, level - 1, max(start, at), min(end, at + size)):
                yield inner[0], inner[1], high[inner[2]]
        else:
            yield at, min(end, at + size), high
    if level == 0 or largest.shape[1] < 2:
        return


def _largest(evidence: Evidence, tensors: Array, level: int, start: int, stop: int) -> tuple[int, Array]:
    """The first column, and (t, n) log2 of the largest magnitudes, the loss scale taken out; -Inf: there is none."""
    block = evidence.run.slice(RANGES, list(evidence.ranks), level, start, stop, ["amax"], tensors)
    with np.errstate(divide="ignore"):
        bits = np.log2(np.asarray(block.columns["amax"], np.float64))
    if evidence.is_loss_scaled and evidence.has_series("loss_scale"):
        row = np.array([evidence.run.names().series["loss_scale"]])
        scale = evidence.run.slice(SERIES_PART, list(evidence.ranks), level, start, stop, ["min"], row).columns["min"]
        known = np.where(np.isfinite(scale[0]) & (scale[0] > 0), scale[0], 1.0)
        bits = bits - np.log2(known)
    return block.first, bits


def _judged(evidence: Evidence, tensors: Array, bits: float, start: int, stop: int) -> list[Rise]:
    """The first rise of each tensor that is seen in the steps [start, stop)."""
    low = max(evidence.start, start - WINDOW)
    names = ("call_count", "amax", "nan_count", "inf_count")
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, stop, names, tensors)
    calls, amax, nans, infs = (np.asarray(block.columns[name], np.float64) for name in names)
    with np.errstate(divide="ignore", invalid="ignore"):
        points = np.where((calls > 0) & (nans + infs == 0) & (amax > 0), np.log2(amax), np.nan)
        if evidence.is_loss_scaled:
            points = points - np.log2(evidence.series("loss_scale", low, stop))
    steps = np.arange(low, stop)
    return [
        rise
        for tensor, row in zip(tensors.tolist(), points, strict=True)
        if (rise := _first_of(tensor, steps[np.isfinite(row)], row[np.isfinite(row)], bits, start)) is not None
    ]


def _first_of(tensor: int, steps: Array, there: Array, bits: float, start: int) -> Rise | None:
    for end in range(max(EARLY_HISTORY + LASTING, int(np.searchsorted(steps, start))), len(there) + 1):
        history, last = there[max(0, end - LASTING - WINDOW) : end - LASTING], there[end - LASTING : end]
        least = bits + (EARLY_BITS if len(history) < HISTORY else 0.0)
        if last.min() - np.median(history) < least:  # the quantile is not below it
            continue
        usual = usual_height(history)
        if last.min() - usual >= least:
            return Rise(tensor, int(steps[end - LASTING]), int(steps[end - 1]), usual, float(last.min() - usual))
    return None


def usual_height(history: Array) -> float:
    """Of (n,) bits."""
    return float(np.sort(history)[int(USUAL * len(history))])
