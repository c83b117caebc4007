"""Parameters that no rank's optimizer changes: their checksums stay the same on each rank that holds a part of them.

Ranks read them once in `replica_every` steps, to compare them. All ranks merged have the largest: where that changes,
somebody's part has changed, and only where it does not are ranks asked.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from rangewatch_server.core import deadline
from rangewatch_server.rules.evidence import Array, Evidence
from rangewatch_server.rules.recent import tensors_of

CHECKSUMS = ("axis_checksum", "checksum_max")

LASTING = 8
"""Steps between two readings that are the same."""

NEGLIGIBLE = 1e-5
"""Of the median gradient, see `unchanged_weights`."""

MOST_ASKED = 8
"""Parameters of which ranks are asked, and `MOST_RANKS` of the ranks."""
MOST_RANKS = 64

WIDE = ("float32", "float64")
"""In others an update may be lost in rounding."""


class Same(msgspec.Struct, frozen=True):
    """`tensor`: of its gradient. Its bits were the same in `readings` readings at the steps from `since` to `until` on
    all `ranks` that hold any of it; `amax`: the largest of its gradient then. `is_before`: no earlier reading is known.
    """

    tensor: int
    since: int
    until: int
    readings: int
    amax: float
    ranks: tuple[int, ...]
    is_before: bool


def same_bits(evidence: Evidence) -> Iterator[Same]:
    """The first ones in the order of the model."""
    gradients = tensors_of(evidence, "grad")
    window = evidence.window(("call_count", "amax", "nan_count", "inf_count", *CHECKSUMS))
    columns = [window.columns[name][gradients] for name in CHECKSUMS if name in window.columns]
    if not columns or not len(gradients):
        return
    largest = np.maximum.reduce(columns)
    amax, calls = window.columns["amax"][gradients], window.columns["call_count"][gradients]
    usual = float(np.median(amax.max(axis=1, initial=0.0)))
    entries = evidence.tensors.entries
    updated = _updated(evidence, window.start, window.stop)
    order = np.argsort(evidence.tensors.position[gradients], kind="stable")
    asked = 0
    for at in order.tolist():
        tensor = int(gradients[at])
        span = _span(largest[at])
        if span is None or entries[tensor].dtype not in WIDE or asked == MOST_ASKED:
            continue
        first, last, readings, is_before = span
        pushed = amax[at, first:last][calls[at, first:last] > 0]
        if not len(pushed) or not (pushed > NEGLIGIBLE * usual).all() or updated[first:last].sum() < LASTING:
            continue
        asked += 1
        ranks = _held_by(evidence, tensor, window.start + first, window.start + last + 1)
        if ranks:
            median = float(np.median(pushed))
            yield Same(tensor, window.start + first, window.start + last, readings, median, ranks, is_before)


def _span(values: Array) -> tuple[int, int, int, bool] | None:
    """The first and the last of the readings that are the same as the newest, how many, and whether there is none
    before."""
    read = np.flatnonzero(values > 0)
    if len(read) < 2:
        return None
    other = np.flatnonzero(values[read] != values[read[-1]])
    begin = int(other[-1]) + 1 if len(other) else 0
    first, last = int(read[begin]), int(read[-1])
    return (first, last, len(read) - begin, begin == 0) if last - first >= LASTING else None


def _updated(evidence: Evidence, start: int, stop: int) -> Array:
    """(n,) whether the step's update can have changed a weight: with a learning rate, and not skipped."""
    moved = np.ones(stop - start, bool)
    if evidence.has_series("lr"):
        moved &= evidence.largest("lr", start, stop) != 0  # one that is not known does not count as none
    if evidence.has_series("skipped_step"):
        moved &= ~(evidence.series("skipped_step", start, stop) > 0)
    return moved


def _held_by(evidence: Evidence, tensor: int, start: int, stop: int) -> tuple[int, ...]:
    """Ranks that hold a part of it, none of which has changed; none where any has."""
    holders = []
    for rank in evidence.ranks[:MOST_RANKS]:
        deadline.check()
        row = evidence.row(tensor, rank, start, stop, CHECKSUMS)
        values = np.maximum.reduce([row[name] for name in CHECKSUMS if name in row])
        read = values[values > 0]
        if len(set(read.tolist())) > 1:
            return ()
        if len(read) > 1:
            holders.append(rank)
    return tuple(holders)
