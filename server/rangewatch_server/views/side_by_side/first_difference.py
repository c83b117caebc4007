"""The first step and tensor at which two runs part beyond their own noise, for programs: `rangewatch diff`.

Compared are the largest magnitude of each tensor, bit for bit, and its mean square where both runs have it; and where
both have a sketch, whether all its bits are equal, or else how far the two tensors are from each other. What runs that
repeat the first one differ from it by, up to a step, is noise there: the second parts where it is further away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.statistics import dtype_limits, sketches
from rangewatch.wire.records import KINDS
from rangewatch_server.core import deadline
from rangewatch_server.figures import comparison
from rangewatch_server.figures.base import grid, label
from rangewatch_server.figures.name_filter import chosen
from rangewatch_server.machines.mesh import mesh_of, world_size
from rangewatch_server.numerics.pyramid import FANOUT, RANGES
from rangewatch_server.query.reader import RunReader
from rangewatch_server.store.names import Tensors
from rangewatch_server.views.side_by_side import parting, sketch_distance

Array = NDArray[Any]

SKETCHED_COLUMNS = 5  # times as many statistics are read where there are sketches
CHUNK_CELLS = 1 << 18  # tensors times columns compared at once
MOST_CELLS = 1 << 26  # compared at all: of a longer pair it is said how far
MOST_TENSORS = 50
MOST_NAMES = 20  # of tensors that one side alone has
TYPICAL = 0.9
"""Of the tensors' noise at a step: what a tensor that happened to be without any is granted too."""

AHEAD = 8
"""Columns past a step whose noise counts at it too: at the first steps there is little to know it by."""

UNITS_IN_LAST_PLACE = 8.0
"""That two precisions or layouts may differ by: of the coarsest dtype, of any pair that has two or of all pairs."""

WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"})
"""Parts of names that wrappers put in: DDP, torch.compile, FSDP1, activation checkpointing, DeepSpeed."""

OF_ANY_LAYOUT = (
    "output", "input", "weight", "update", "reduced_grad", "exp_avg", "exp_avg_sq", "momentum_buffer",
    "scaled_input", "scaled_weight",
)  # fmt: skip
"""Kinds whose largest magnitude over all ranks and calls does not depend on how a batch is split over them. Gradients
before their reduction are of the mean over a part: twice as large of half the batch."""

_COLUMNS = ("call_count", "amax", "nan_count", "inf_count", "full_numel", "sum_sq")


class Limits(msgspec.Struct, frozen=True):
    """`tolerance`: of the greater, that is no difference. `margin`: how many times the noise is still noise."""

    tolerance: float = 0.0
    margin: float = 3.0


class _Side(msgspec.Struct, frozen=True):
    """One run's rows of the tensors that are compared: `order[i]` is its ordinal of pair i."""

    run: RunReader
    order: Array


def find(reference: RunReader, other: RunReader, noise: Sequence[RunReader], limits: Limits) -> dict[str, Any]:
    """The answer of `/api/v1/compare/first`."""
    runs = (reference, other, *noise)
    is_one_layout = len({_layout(run) for run in runs}) == 1
    left_out = [] if is_one_layout else [each for each in KINDS if each not in OF_ANY_LAYOUT]
    paired, sides = _paired(reference, other, noise, OF_ANY_LAYOUT if left_out else ())
    start = max((run.first_step or 0 for run in runs), default=0)
    stop = min((-1 if run.last_step is None else run.last_step for run in runs), default=-1) + 1
    stop = max(start, stop)
    finest = _log2_of_columns(runs, start, stop)
    limits = Limits(max(limits.tolerance, _rounding(reference, other, paired, sides[2:])), limits.margin)
    with np.errstate(divide="ignore"):
        floor = -np.log2(1 - limits.tolerance)
    answer: dict[str, Any] = {
        "start": start, "stop": stop, "steps_per_column": FANOUT**finest, "matched": len(paired.here),
        "only_here": _names(reference.names().tensors, paired.only_here),
        "only_there": _names(other.names().tensors, paired.only_there), "is_whole": True, "compared_stop": start,
        "floor_bits": float(floor), "step": None, "count": 0, "tensors": [],
        "left_out": left_out, "sketched": None,
        # That of a pipeline is of its last microbatch.
        "loss": _loss(reference, other, noise, limits, start, stop) if is_one_layout else None,
    }  # fmt: skip
    if not len(paired.here):
        return answer
    per = FANOUT**finest
    is_sketched = all(sketches.NUMEL in run.names().fill[RANGES] for run in (reference, other))
    sketched = _Sketched(reference, paired) if is_sketched else None
    width = max(1, CHUNK_CELLS // len(paired.here) // (SKETCHED_COLUMNS if is_sketched else 1)) * per
    end = min(stop, start + max(width, MOST_CELLS // len(paired.here) * per))
    threshold = _Threshold(len(paired.here), limits, float(floor))
    for low in range(start - start % per, end, width):
        deadline.check()
        high = min(end, low + width)
        until = min(stop, high + AHEAD * per) if noise else high
        here, there, *repeats = (_read(side, finest, max(low, start), until, is_sketched) for side in sides)
        columns_now = -(-high // per) - max(low, start) // per
        shape = (len(paired.here), columns_now)
        allowed = threshold.over([_apart(here, each, per) for each in repeats], shape)
        found = _apart(here, there, per).first(columns_now)
        beyond = (found.bits > allowed.bits) | (found.broke & ~allowed.broke)
        beyond |= sketch_distance.is_beyond(found.distance, allowed.distance)
        answer["compared_stop"] = high
        if sketched is not None:
            answer["sketched"] = sketched.add(found.distance, low, per)
        columns = np.flatnonzero(beyond.any(axis=0))
        if len(columns):
            at = int(columns[0])
            answer["step"] = max(start, low + at * per)
            rows = np.flatnonzero(beyond[:, at])
            answer["count"] = len(rows)
            answer["tensors"] = [
                _entry(reference, other, paired, row, here, there, found, allowed, at)
                for row in rows[:MOST_TENSORS].tolist()
            ]
            return answer
    answer["is_whole"] = end == stop
    return answer


class _Apart(msgspec.Struct, frozen=True):
    """(tensors, columns) each: `bits` between the two sides, NaN where one was not observed; `broke`: NaN or Inf on
    one side alone; `distance` by the sketches, see there."""

    bits: Array
    broke: Array
    distance: Array

    def first(self, columns: int) -> _Apart:
        """So many columns of it."""
        return _Apart(self.bits[:, :columns], self.broke[:, :columns], self.distance[:, :columns])


class _Sketched:
    """Of how many tensors there are sketches of both runs, of how many all were equal in all bits, at which step the
    first was not, and which was furthest."""

    def __init__(self, reference: RunReader, paired: comparison.Pairs) -> None:
        tensors = len(paired.here)
        self._entries, self._here = reference.names().tensors.entries, paired.here
        self._some, self._unequal = np.zeros(tensors, bool), np.zeros(tensors, bool)
        self._first: dict[str, Any] | None = None
        self._furthest: dict[str, Any] | None = None

    def add(self, distance: Array, start: int, per: int) -> dict[str, Any]:
        """With so many more columns, the first of which begins with the step `start`."""
        known = np.nan_to_num(distance)
        self._some |= ~np.isnan(distance).all(axis=1)
        self._unequal |= (known > 0).any(axis=1)
        columns = np.flatnonzero((known > 0).any(axis=0))
        if len(columns):
            at = int(columns[0])
            self._first = self._first or self._place(int((known[:, at] > 0).argmax()), at, known, start, per)
            row, at = (int(each) for each in np.unravel_index(known.argmax(), known.shape))
            if self._furthest is None or known[row, at] > self._furthest["distance"]:
                self._furthest = self._place(row, at, known, start, per)
        equal = int((self._some & ~self._unequal).sum())
        count = int(self._some.sum())
        return {"tensors": count, "equal": equal, "first_unequal": self._first, "furthest": self._furthest}

    def _place(self, row: int, at: int, distance: Array, start: int, per: int) -> dict[str, Any]:
        entry = self._entries[int(self._here[row])]
        return {"step": start + at * per, "label": label(entry), "distance": float(distance[row, at])}


class _Threshold:
    """What is noise so far: a tensor's own greatest, and that of most tensors."""

    def __init__(self, tensors: int, limits: Limits, floor: float) -> None:
        self._bits = _Greatest(tensors, limits.margin, floor)
        self._distance = _Greatest(tensors, limits.margin, limits.tolerance)
        self._broke, self._has_distance = np.zeros(tensors, bool), np.zeros(tensors, bool)

    def over(self, repeats: list[_Apart], shape: tuple[int, ...]) -> _Apart:
        """What is allowed in so many columns; `repeats` have some more, and later ones go on from these. Of sketches
        that no repeat has, any distance is.
        """
        if not shape[1]:
            return _Apart(np.zeros(shape), np.zeros(shape, bool), np.zeros(shape))
        bits = self._bits.over([each.bits for each in repeats], shape)
        distance = self._distance.over([each.distance for each in repeats], shape)
        if not repeats:
            return _Apart(bits, np.zeros(shape, bool), distance)
        broke = np.logical_or.accumulate(np.any([each.broke for each in repeats], axis=0), axis=1)
        has = np.any([~np.isnan(each.distance) for each in repeats], axis=0)
        has = np.logical_or.accumulate(has, axis=1)
        ahead = np.minimum(np.arange(shape[1]) + AHEAD, broke.shape[1] - 1)
        broke, has = broke[:, ahead] | self._broke[:, None], has[:, ahead] | self._has_distance[:, None]
        self._broke, self._has_distance = broke[:, -1], has[:, -1]
        return _Apart(bits, broke, np.where(has, distance, np.inf))


class _Greatest:
    """What repeats are apart by up to a step, in one measure, of each tensor and of most; `floor` is allowed on top."""

    def __init__(self, tensors: int, margin: float, floor: float) -> None:
        self._own, self._typical = np.zeros(tensors), 0.0
        self._margin, self._floor = margin, floor

    def over(self, repeats: list[Array], shape: tuple[int, ...]) -> Array:
        """What is allowed in so many columns, one or more."""
        if not repeats:
            return np.full(shape, self._floor)
        own = np.nanmax([np.where(np.isnan(each), 0.0, each) for each in repeats], axis=0)
        typical = np.max([_typical(each) for each in repeats], axis=0)
        own = np.maximum(np.maximum.accumulate(own, axis=1), self._own[:, None])
        typical = np.maximum(np.maximum.accumulate(typical), self._typical)
        ahead = np.minimum(np.arange(shape[1]) + AHEAD, own.shape[1] - 1)
        own, typical = own[:, ahead], typical[ahead]
        self._own, self._typical = own[:, -1], float(typical[-1])
        return self._margin * np.maximum(own, typical) + self._floor


def _typical(bits: Array) -> Array:
    """(columns,) what most of the tensors that were observed stay below; 0 where none was."""
    some = np.where(np.isnan(bits).all(axis=0), 0.0, bits)
    return np.nanquantile(some, TYPICAL, axis=0)


def _read(side: _Side, level: int, start: int, stop: int, is_sketched: bool) -> dict[str, Array]:
    rows = np.sort(side.order)
    names = _COLUMNS + (sketch_distance.COLUMNS if is_sketched else ())
    wanted = [name for name in names if name in side.run.names().fill[RANGES]]
    block = side.run.slice(RANGES, tuple(sorted(side.run.ranks)), level, start, stop, wanted, rows)
    places = np.searchsorted(rows, side.order)
    return {name: np.asarray(values, np.float64)[places] for name, values in block.columns.items()}


def _apart(here: dict[str, Array], there: dict[str, Array], per: int) -> _Apart:
    """`per`: steps of a column."""
    both = (here["call_count"] > 0) & (there["call_count"] > 0)
    bad, other_bad = ((each["nan_count"] + each["inf_count"]) > 0 for each in (here, there))
    bits = _log2_ratio(here["amax"], there["amax"])
    if "sum_sq" in here and "sum_sq" in there:
        is_full = (here["full_numel"] > 0) & (here["full_numel"] == there["full_numel"])
        bits = np.maximum(bits, np.where(is_full, _log2_ratio(here["sum_sq"], there["sum_sq"]) / 2, 0.0))
    # With NaN or Inf on both sides what is left of the finite values says little.
    bits, broke = np.where(both & ~(bad & other_bad), bits, np.nan), both & (bad != other_bad)
    distance = np.full(bits.shape, np.nan)
    if all(name in columns for columns in (here, there) for name in sketch_distance.COLUMNS):
        distance = np.where(both, sketch_distance.distance(here, there), np.nan)
        if per == 1:  # else there may be steps of the column without a sketch
            bits = np.where(distance == 0, 0.0, bits)
        distance = np.where(bad & other_bad & (distance > 0), np.nan, distance)
    return _Apart(bits, broke, distance)


def _log2_ratio(one: Array, two: Array) -> Array:
    """0 where they are equal, Inf where one alone is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(one == two, 0.0, np.abs(np.log2(one) - np.log2(two)))


def _entry(
    reference: RunReader, other: RunReader, paired: comparison.Pairs, row: int, here: dict[str, Array],
    there: dict[str, Array], found: _Apart, allowed: _Apart, at: int,
) -> dict[str, Any]:  # fmt: skip
    entry = reference.names().tensors.entries[int(paired.here[row])]
    twin = other.names().tensors.entries[int(paired.there[row])]
    bits = float(found.bits[row, at])
    return {
        "tensor": int(paired.here[row]), "other_tensor": int(paired.there[row]), "label": label(entry),
        "fqn": entry.fqn, "kind": entry.kind, "index": entry.index, "dtype": entry.dtype, "other_dtype": twin.dtype,
        "amax": float(here["amax"][row, at]), "other_amax": float(there["amax"][row, at]),
        "nonfinite_count": float(here["nan_count"][row, at] + here["inf_count"][row, at]),
        "other_nonfinite_count": float(there["nan_count"][row, at] + there["inf_count"][row, at]),
        "difference_bits": bits if np.isfinite(bits) else None, "allowed_bits": float(allowed.bits[row, at]),
        "sketch": sketch_distance.shown(float(found.distance[row, at]), float(allowed.distance[row, at])),
    }  # fmt: skip


def _loss(
    reference: RunReader, other: RunReader, noise: Sequence[RunReader], limits: Limits, start: int, stop: int
) -> dict[str, Any] | None:
    """The first step at which the losses are apart by more than the tolerance and the noise; None where there is none,
    or one of the runs logged none."""
    runs = (reference, other, *noise)
    if any(parting.LOSS not in run.names().series for run in runs) or start >= stop:
        return None
    per = FANOUT ** _log2_of_columns(runs, start, stop)
    most = 0.0
    end = min(stop, start + parting.MOST_COLUMNS * per)
    for low in range(start, end, parting.CHUNK * per):
        deadline.check()
        cut = grid(low, min(end, low + parting.CHUNK * per), parting.CHUNK + 2, per)
        (one, has_one), (two, has_two), *repeats = (parting.means(run, cut) for run in runs)
        difference = _difference(one, two)
        spread = np.zeros(len(one))
        for values, has in repeats:
            spread = np.maximum(spread, np.where(has & has_one, np.nan_to_num(_difference(one, values)), 0.0))
        spread = np.maximum(np.maximum.accumulate(spread), most) if len(spread) else spread
        with np.errstate(invalid="ignore"):
            greater = np.nan_to_num(np.maximum(np.abs(one), np.abs(two)))
        beyond = has_one & has_two & (difference > limits.margin * spread + limits.tolerance * greater)
        if beyond.any():
            at = int(beyond.argmax())
            shown = [float(each[at]) if np.isfinite(each[at]) else None for each in (one, two)]
            return {"step": max((cut.first + at) * cut.per, start), "values": shown}
        most = float(spread[-1]) if len(spread) else most
    return None


def _difference(one: Array, two: Array) -> Array:
    """Inf where one alone is NaN."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(one - two)
    apart[np.isnan(one) & np.isnan(two)] = 0.0
    apart[np.isnan(one) != np.isnan(two)] = np.inf
    return apart


def _log2_of_columns(runs: Sequence[RunReader], start: int, stop: int) -> int:
    """The finest level of the pyramid that all runs have whole."""
    most = max((parting.merged(run, start, stop) for run in runs), default=1) if start < stop else 1
    level = 0
    while FANOUT**level < most:
        level += 1
    return level


MOST_ROUNDING = 0.5
"""Eight units in the last place of float8 are as much as the value itself: nothing would differ by more."""


def _rounding(reference: RunReader, other: RunReader, paired: comparison.Pairs, repeats: Sequence[_Side]) -> float:
    """Of the greater: what two precisions may differ by, and two layouts, which add in another order; 0 where each pair
    of tensors has one dtype and the runs one layout, or the noise is already that of two.
    """
    dtypes: set[str] = set()
    if not any(_dtypes(reference, paired.here, each.run, each.order) for each in repeats):
        dtypes |= _dtypes(reference, paired.here, other, paired.there)
    layout = _layout(reference)
    if _layout(other) != layout and all(_layout(each.run) == layout for each in repeats):
        dtypes |= {reference.names().tensors.entries[each].dtype for each in paired.here}
    known = [dtype_limits.LIMITS[each] for each in dtypes if each in dtype_limits.LIMITS]
    units = max((each.smallest_subnormal / each.smallest_normal for each in known), default=0.0)
    return min(MOST_ROUNDING, UNITS_IN_LAST_PLACE * units)


def _dtypes(one: RunReader, order: Array, two: RunReader, other_order: Array) -> set[str]:
    """Those of pairs that have two."""
    mine, theirs = one.names().tensors.entries, two.names().tensors.entries
    pairs = [(mine[here].dtype, theirs[there].dtype) for here, there in zip(order, other_order, strict=True)]
    return {dtype for pair in pairs if pair[0] != pair[1] for dtype in pair}


def _layout(run: RunReader) -> tuple[Any, ...]:
    """How a run lies on its ranks."""
    return world_size(run), mesh_of(run).axes


def _paired(
    reference: RunReader, other: RunReader, noise: Sequence[RunReader], kinds: Sequence[str]
) -> tuple[comparison.Pairs, list[_Side]]:
    """Pairs of the two runs of these kinds (all when empty), and each run's rows of those that all runs have: in call
    order, by the run of fewer ranks, since stages of a pipeline count their calls for themselves.
    """
    mine = reference.names().tensors
    order = _compared(mine, kinds)
    everyone = [each.names().tensors for each in (other, *noise)]
    pairs = [comparison.pairs(mine, order, each, _compared(each, kinds), unwrapped) for each in everyone]
    common = set(pairs[0].here.tolist()).intersection(*(each.here.tolist() for each in pairs[1:]))
    kept = np.array([each for each in pairs[0].here.tolist() if each in common], np.int64)
    twins = [dict(zip(each.here.tolist(), each.there.tolist(), strict=True)) for each in pairs]
    if world_size(other) < world_size(reference):
        calls = [everyone[0].call_index[twins[0][each]] for each in kept.tolist()]
        kept = kept[np.argsort(calls, kind="stable")]
    orders = [np.array([twin[each] for each in kept.tolist()], np.int64) for twin in twins]
    paired = comparison.Pairs(kept, orders[0], pairs[0].only_here, pairs[0].only_there)
    return paired, [_Side(run, rows) for run, rows in zip((reference, other, *noise), [kept, *orders], strict=True)]


def _compared(tensors: Tensors, kinds: Sequence[str]) -> Array:
    """Ordinals in call order of all tensors; or of `kinds`, without the model's own, which of a stage of a pipeline are
    those of the stage.
    """
    order = chosen(tensors, kinds, "")
    return order[[bool(unwrapped(tensors.entries[each].fqn)) for each in order.tolist()]] if kinds else order


def unwrapped(fqn: str) -> str:
    """A tensor's name without what wrappers put in."""
    return ".".join(part for part in fqn.split(".") if part not in WRAPPERS)


def _names(tensors: Tensors, ordinals: list[int]) -> dict[str, Any]:
    return {"count": len(ordinals), "labels": [label(tensors.entries[each]) for each in ordinals[:MOST_NAMES]]}
