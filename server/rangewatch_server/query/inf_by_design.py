"""Infinities that are meant, as in attention masks: which tensors hold them, and blocks without their counts.

A tensor of the forward is one of these when its Inf was there from the first steps and nothing took it over: no NaN
anywhere in the forward of that step, a finite loss, and gradients that were finite or that the loss scaler skipped.
What overflows has finite elements near the dtype's limit beside the Inf, a mask has not.

Decided by the first steps of a run alone. Of fewer, as the run was before a step, by those (`find`'s `stop`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rangewatch.wire.records import KINDS, MOMENTS
from rangewatch_server.numerics.pyramid import FANOUT, NO_STEP, NONFINITE_STEP, RANGES, SERIES_PART, SUMMARY, Block

Array = NDArray[Any]

FIRST_STEPS = 64
"""Steps of a run in which what is meant to be Inf shows: a tile. A batch without padding has none."""

EARLY_STEPS = 16
"""Of those the ones in which it must have held Inf first."""

NEAR_LIMIT_BITS = 4.0
"""Headroom of the finite elements below which Inf beside them may be an overflow."""

LEAST_SHARE = 0.25
"""Of the steps in which such a tensor was observed so many held Inf, or more: padding is not in every batch."""

MOST_RANKS = 64
"""Ranks that are read one by one, of those that held Inf in a column in which more than the masks did."""

FORWARD = [KINDS.index(kind) for kind in ("output", "input")]
AFTER = [KINDS.index(kind) for kind in ("grad_output", "grad", "reduced_grad", "update", *MOMENTS)]
WEIGHT = KINDS.index("weight")
LOSS, SKIPPED = "loss", "skipped_step"
NOBODY = np.zeros(0, np.int64)

COUNTED = ("inf_count", "nonfinite_ns", NONFINITE_STEP)
"""Columns of which Inf by design is taken out."""

_WANTED = ("call_count", "amax", "nan_count", "inf_count")


class Run(Protocol):
    """What a `RunReader` is."""

    @property
    def id(self) -> int: ...
    @property
    def reader(self) -> Any: ...
    @property
    def ranks(self) -> Any: ...
    @property
    def first_step(self) -> int | None: ...
    @property
    def last_step(self) -> int | None: ...
    @property
    def is_all_finite(self) -> bool: ...
    def names(self) -> Any: ...
    def stored(
        self, part: str, ranks: Sequence[int], level: int, start: int, stop: int, wanted: Sequence[str],
        rows: Array | None = None,
    ) -> Block: ...  # fmt: skip


def find(run: Run, stop: int | None = None) -> Array:
    """(d,) ordinals of the tensors that hold Inf by design, ascending; as it was known before the step `stop`."""
    if run.first_step is None or run.last_step is None or run.is_all_finite:
        return NOBODY
    streams = [stream for rank in run.ranks.values() for stream in rank.streams]
    # Batches of the first steps are among the first; what comes later changes nothing here.
    key = (run.id, "inf by design", tuple((each.id, each.rewrites, min(each.contiguous, 1_024)) for each in streams),
           min(run.last_step - run.first_step, FIRST_STEPS), stop, run.names().version)  # fmt: skip
    known: Array | None = run.reader.summaries.get(key)
    if known is None:
        end = min(run.first_step + FIRST_STEPS, run.last_step + 1, run.last_step + 1 if stop is None else stop)
        known = _find(run, run.first_step, end) if run.first_step < end else NOBODY
        run.reader.summaries.put(key, known, 200 + known.nbytes)
    return known


def _find(run: Run, start: int, stop: int) -> Array:
    tensors, ranks = run.names().tensors, sorted(run.ranks)
    block = run.stored(RANGES, ranks, 0, start, stop, _WANTED, np.arange(len(tensors.entries)))
    calls, amax, nans, infs = (np.asarray(block.columns[name], np.float64) for name in _WANTED)
    is_forward = np.isin(tensors.kind_rows, FORWARD)
    has_inf = (infs > 0) & (calls > 0) & is_forward[:, None]
    if not has_inf.any():
        return NOBODY
    is_contained = _contained(run, tensors, calls, nans, infs, start, stop)
    first = has_inf.argmax(axis=1)
    each = np.arange(len(first))
    with np.errstate(divide="ignore", invalid="ignore"):
        room = tensors.log2_max - np.log2(amax[each, first])
    # Exactly the limit is a mask too: the lowest number of the dtype, of which two were added.
    is_far = ~(room < NEAR_LIMIT_BITS) | (room == 0)
    is_often = has_inf.sum(axis=1) >= LEAST_SHARE * (calls > 0).sum(axis=1)
    is_early = first - (calls > 0).argmax(axis=1) < EARLY_STEPS
    return np.flatnonzero(has_inf.any(axis=1) & is_contained[first] & is_far & is_often & is_early)


def _contained(run: Run, tensors: Any, calls: Array, nans: Array, infs: Array, start: int, stop: int) -> Array:
    """(n,) bool: steps in which nothing that counts took an Inf of the forward over."""
    kinds = tensors.kind_rows
    is_forward, is_after = np.isin(kinds, [*FORWARD, WEIGHT]), np.isin(kinds, AFTER)
    has_nan = (nans[is_forward] > 0).any(axis=0) | (infs[kinds == WEIGHT] > 0).any(axis=0)
    loss_is_known, loss_is_bad = _series(run, LOSS, start, stop)
    _, skipped = _series(run, SKIPPED, start, stop)
    is_bad_after = ((nans + infs)[is_after] > 0).any(axis=0) & ~skipped
    outputs = np.flatnonzero(kinds == KINDS.index("output"))
    seen = calls[outputs] > 0
    # Where neither the loss nor a gradient is known, some output after the last Inf must be finite.
    order = np.argsort(tensors.position[outputs], kind="stable")
    last = (seen * (1 + np.argsort(order))[:, None]).argmax(axis=0) if len(outputs) else np.zeros(stop - start, int)
    ends_finite = (infs[outputs[last], np.arange(stop - start)] == 0) if len(outputs) else np.zeros(stop - start, bool)
    is_shown = loss_is_known | (calls[is_after] > 0).any(axis=0) | ends_finite
    return np.asarray(~has_nan & ~loss_is_bad & ~is_bad_after & is_shown)


def _series(run: Run, name: str, start: int, stop: int) -> tuple[Array, Array]:
    """(n,) bool each: the series was reported; of the loss, it was not finite, of a flag, it was set."""
    known = run.names().series
    if name not in known:
        return np.zeros(stop - start, bool), np.zeros(stop - start, bool)
    wanted = ("count", "nonfinite_count", "sum")
    block = run.stored(SERIES_PART, sorted(run.ranks), 0, start, stop, wanted, np.array([known[name]]))
    count, bad, total = (block.columns[each][0] for each in wanted)
    return count > 0, np.asarray(total > 0 if name == SKIPPED else bad > 0)


def taken_out(run: Run, meant: Array, block: Block, part: str, ranks: Sequence[int], start: int, stop: int) -> Block:
    """The block without the Inf of the tensors `meant`; their NaN stay. `ranks`: those that are merged in it."""
    if part == RANGES:
        return _of_tensors(run, meant, block, ranks, start, stop)
    if part != SUMMARY or "inf_count" not in block.columns:
        return block
    mine = _by_kind(run, meant, ranks, block.level, start, stop)
    counts = np.maximum(0.0, np.asarray(block.columns["inf_count"], np.float64) - mine[block.rows])
    return Block(block.level, block.first, block.rows, block.columns | {"inf_count": counts})


def _of_tensors(run: Run, meant: Array, block: Block, ranks: Sequence[int], start: int, stop: int) -> Block:
    at = np.flatnonzero(np.isin(block.rows, meant))
    names = [name for name in COUNTED if name in block.columns]
    if not len(at) or not names:
        return block
    columns = {name: np.array(block.columns[name], np.float64) for name in names}
    if "inf_count" in columns:
        columns["inf_count"][at] = 0.0
    rest = [name for name in names if name != "inf_count"]
    if rest:
        nans = block.columns.get("nan_count")
        if nans is None:
            nans = run.stored(RANGES, ranks, block.level, start, stop, ["nan_count"], block.rows).columns["nan_count"]
        for name in rest:
            nothing = NO_STEP if name == NONFINITE_STEP else np.inf
            columns[name][at] = np.where(np.asarray(nans)[at] > 0, columns[name][at], nothing)
    return Block(block.level, block.first, block.rows, block.columns | columns)


def _by_kind(run: Run, meant: Array, ranks: Sequence[int], level: int, start: int, stop: int) -> Array:
    """(kinds, n) elements that are Inf by design."""
    block = run.stored(RANGES, ranks, level, start, stop, ["inf_count"], meant)
    counts = np.zeros((len(KINDS), block.columns["inf_count"].shape[1]))
    np.add.at(counts, run.names().tensors.kind_rows[meant], np.asarray(block.columns["inf_count"], np.float64))
    return counts


def taken_out_by_rank(run: Run, meant: Array, block: Block, ranks: Sequence[int], start: int, stop: int) -> Block:
    """The same of a summary by rank. Where all ranks together held no more than `meant` none of them did; elsewhere up
    to `MOST_RANKS` are read one by one, those that held most, and the others held masks."""
    if "inf_count" not in block.columns:
        return block
    counts = np.array(block.columns["inf_count"], np.float64).reshape(len(ranks), len(KINDS), -1)
    left = counts.sum(axis=0) - _by_kind(run, meant, ranks, block.level, start, stop)
    more = np.flatnonzero((left > 0).any(axis=0))
    own: dict[int, Array] = {}
    if len(more):
        size = FANOUT**block.level
        low = max(start, (block.first + int(more[0])) * size)
        high = min(stop, (block.first + int(more[-1]) + 1) * size)
        most = np.argsort(-counts[:, :, more].sum(axis=(1, 2)), kind="stable")[:MOST_RANKS]
        own = {int(place): _by_kind(run, meant, [ranks[place]], block.level, low, high) for place in most}
    rest = np.zeros_like(counts)
    for place, mine in own.items():
        inside = slice(int(more[0]), int(more[0]) + mine.shape[1])
        rest[place, :, inside] = np.maximum(0.0, counts[place, :, inside] - mine)
    rest[:, :, (left <= 0).all(axis=0)] = 0.0
    meant_kinds = np.unique(run.names().tensors.kind_rows[meant])
    counts[:, meant_kinds] = rest[:, meant_kinds]
    return Block(block.level, block.first, block.rows, block.columns | {"inf_count": counts.reshape(-1, left.shape[1])})
