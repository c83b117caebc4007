"""A norm, or a count of zeros, of all gradients that is not the whole model's: recomputed from the shards of all ranks.

Each rank sends its sum of squares, in which what several ranks hold counts once when all are added up. The sum over all
ranks is kept merged anyway, so that 1,024 ranks cost what one does; only where it differs are ranks asked, to see over
which axes the norm was summed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from rangewatch_server.core import deadline
from rangewatch_server.machines import mesh
from rangewatch_server.machines.mesh import ALL_RANKS, Mesh, Ranks
from rangewatch_server.rules.evidence import WINDOW, Array, Evidence
from rangewatch_server.rules.loss.series import NORMS
from rangewatch_server.rules.mesh import values
from rangewatch_server.rules.mesh.values import STAGES
from rangewatch_server.rules.recent import tensors_of
from rangewatch_server.rules.replicas.along_axes import mesh_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

SUM_SQ, LOCAL_SUM_SQ, ZERO_COUNT = "grad_sum_sq", "grad_local_sum_sq", "grad_zero_count"
CLIPPED = "clipped_norm"
ZEROS = ("num_zeros", "num_zeros_in_grad", "zeros_in_grad", "grad_zeros")
"""What loops log as the count of zeros in the gradients, such as Megatron's."""

LOW_PRECISION = 0.04
"""Relative: norms of gradients in 16 bits are summed in 16 bits by torch's own function."""

FEWEST = 3
"""Steps that are wrong in the same direction: a loop may log the norm of another step, or a mean."""

CONSTANT = 1.02
"""Gradients that a loop has clipped itself all have one norm, but for rounding."""

MOST_WINDOWS = 64

DISTINCT = 5.0
"""Times the tolerance by which what ranks hold must differ, to tell whether their norms differ by that."""


class Wrong(msgspec.Struct, frozen=True):
    """`name`: the series that is not what the gradients have, since step `first`; at `step` it was `said` on `rank`
    and should have been `whole`. `over`: axes whose ranks' gradients it is summed over, None where none fit."""

    name: str
    first: int
    right: int | None
    step: int
    rank: int
    said: float
    whole: float
    over: tuple[str, ...] | None
    missing: tuple[str, ...]
    twice: tuple[str, ...]
    is_shown: bool = False
    """Whether ranks at other places along `missing` have norms that are apart by what they hold."""

    @property
    def is_count(self) -> bool:
        """Whether it is of zeros."""
        return self.name in ZEROS


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """One of the norm, and one of the count of zeros."""
    if len(evidence.ranks) < 2 or not evidence.has_series(SUM_SQ):
        return
    for names in ((CLIPPED, *NORMS), ZEROS):
        for name in names:
            found = _wrong(evidence, name, limits["tolerance"]) if evidence.has_series(name) else None
            if found is not None:
                yield _finding(evidence, found)
                break


def _tolerance(evidence: Evidence, least: float) -> float:
    entries = evidence.tensors.entries
    is_low = any(
        "16" in entries[each].dtype or "float8" in entries[each].dtype for each in tensors_of(evidence, "grad")
    )
    return max(least, LOW_PRECISION) if is_low else least


def _wrong(evidence: Evidence, name: str, least: float) -> Wrong | None:
    tolerance = 0.0 if name in ZEROS else _tolerance(evidence, least)
    stop, start = evidence.whole_stop, values.started(evidence)
    steps, ratios, wholes = _compared(evidence, name, max(start, stop - WINDOW), stop, tolerance)
    bad = _last_bad(steps, ratios)
    if bad is None:
        return None
    if name != CLIPPED and name not in ZEROS and _is_clipped_by_hand(ratios[bad:], wholes[bad:]):
        return None
    right = int(steps[bad - 1]) if bad else None
    first = int(steps[bad])
    if bad == 0:
        first, right = _earlier(evidence, name, start, int(steps[0]), tolerance)
    return _explained(evidence, name, first, right, tolerance)


def _compared(evidence: Evidence, name: str, start: int, stop: int, tolerance: float) -> tuple[Array, Array, Array]:
    """Steps at which both are known of all ranks; of each what is said over what is so (1.0: within the tolerance on
    every rank, and the farther of two that are not), and what is so."""
    exact = values.merged(evidence, ZERO_COUNT if name in ZEROS else SUM_SQ, start, stop)
    said = values.merged(evidence, name, start, stop)
    count = len(evidence.ranks)
    is_known = (exact["count"] == count) & (exact["nonfinite_count"] == 0) & (exact["sum"] > 0)
    is_known &= (said["count"] > 0) & (said["nonfinite_count"] == 0)
    at = np.flatnonzero(is_known)
    whole = exact["sum"][at] if name in ZEROS else np.sqrt(exact["sum"][at])
    low, high = said["min"][at] / whole, said["max"][at] / whole
    slack = tolerance if name not in ZEROS else 0.5 / whole
    ratio = np.where(np.abs(high - 1) >= np.abs(low - 1), high, low)
    return start + at, np.where(np.abs(ratio - 1) <= slack, 1.0, ratio), whole


def _last_bad(steps: Array, ratios: Array) -> int | None:
    """Where the last of the compared steps begin that are all wrong, and all in one direction."""
    if not len(steps) or ratios[-1] == 1.0:
        return None
    right = np.flatnonzero((ratios == 1.0) | (np.sign(ratios - 1) != np.sign(ratios[-1] - 1)))
    first = int(right[-1]) + 1 if len(right) else 0
    return first if len(steps) - first >= FEWEST else None


def _is_clipped_by_hand(ratios: Array, wholes: Array) -> bool:
    """Whether the gradients were read after a clip of the loop's own: what it logs is what they had before."""
    cut = wholes[ratios > 1]
    return bool(len(cut) and (ratios >= 1).all() and cut.max() < CONSTANT * cut.min())


def _earlier(evidence: Evidence, name: str, start: int, stop: int, tolerance: float) -> tuple[int, int | None]:
    """The first step that is wrong, and the last before that is right, given that `stop` is wrong."""
    first = stop
    for _ in range(MOST_WINDOWS):
        if stop <= start:
            break
        deadline.check()
        low = max(start, stop - WINDOW)
        steps, ratios, _ = _compared(evidence, name, low, stop, tolerance)
        right = np.flatnonzero(ratios == 1.0)
        if len(right):
            later = steps[right[-1] + 1 :]
            return (int(later[0]) if len(later) else first), int(steps[right[-1]])
        first, stop = int(steps[0]) if len(steps) else first, low
    return first, None


def _explained(evidence: Evidence, name: str, step: int, right: int | None, tolerance: float) -> Wrong | None:
    known = mesh_of(evidence)
    exact = values.merged(evidence, ZERO_COUNT if name in ZEROS else SUM_SQ, step, step + 1)
    whole = float(exact["sum"][0] if name in ZEROS else math.sqrt(exact["sum"][0]))
    ranks = evidence.ranks[: values.MOST_READ]
    said = values.at(evidence, name, step, ranks)
    if not said:
        return None
    rank = max(said, key=lambda each: (abs(said[each] / whole - 1), -each))
    over: tuple[str, ...] | None = None
    missing: tuple[str, ...] = ()
    twice: tuple[str, ...] = ()
    axes = [axis for axis, size in known.axes if size > 1 and axis not in known.joined]
    sharded, replicated = _placed(evidence, axes)
    if name not in ZEROS and len(ranks) == len(evidence.ranks):
        local = values.at(evidence, LOCAL_SUM_SQ, step, ranks)
        over = next(_sums_over(known, axes, local, said, max(tolerance, 1e-3)), None)
    if over is None and name not in ZEROS:
        exact_sums = values.at(evidence, SUM_SQ, step, ranks)
        alone = (axis for axis in axes if axis in sharded and _is_left_out(known, axis, exact_sums, said, tolerance))
        missing = tuple(itertools.islice(alone, 1))
    is_shown = bool(missing)
    if over is not None:
        missing = tuple(axis for axis in axes if axis not in over and axis in sharded)
        twice = tuple(axis for axis in over if axis in replicated)
        if not missing and not twice:  # nothing is replicated there, and yet it is too much: a weight is on two ranks
            twice = tuple(axis for axis in over if values.role(axis) == STAGES)
        if not missing and not twice:  # each rank's norm is right of what it holds: gradients of replicas are not alike
            return None
    if not missing and not twice:
        missing = tuple(axis for axis in axes if axis in sharded) if said[rank] < whole else ()
        twice = tuple(axis for axis in axes if axis in replicated) if said[rank] > whole else ()
        over = None
    return Wrong(name, step, right, step, rank, said[rank], whole, over, missing, twice, is_shown)


def _sums_over(
    known: Mesh, axes: Sequence[str], local: Mapping[int, float], said: Mapping[int, float], tolerance: float
) -> Iterator[tuple[str, ...]]:
    """Sets of axes, the smallest first, by which each rank's norm is that of all that the ranks along them hold."""
    for size in range(len(axes) + 1):
        for chosen in itertools.combinations(axes, size):
            deadline.check()
            groups: Sequence[Ranks] = known.groups_along(chosen, local) if chosen else [(each,) for each in local]
            norms = {rank: math.sqrt(sum(local[each] for each in group)) for group in groups for rank in group}
            if all(rank in norms and abs(value - norms[rank]) <= tolerance * value for rank, value in said.items()):
                yield chosen


def _is_left_out(
    known: Mesh, axis: str, exact: Mapping[int, float], said: Mapping[int, float], tolerance: float
) -> bool:
    """Whether the norms are right but for a sum over this axis: then the squares of two ranks' norms are as far apart
    as what ranks at their places along it hold, since what is replicated along it is in both.

    `exact`: rank -> its sum of squares, in which what several ranks hold counts once when those of all are added.
    """
    sums: dict[int, float] = {}
    squares: dict[int, list[float]] = {}
    for rank, square in exact.items():
        place = known.coordinates(rank).get(axis)
        if place is None or rank not in said:
            return False
        sums[place] = sums.get(place, 0.0) + square
        squares.setdefault(place, []).append(said[rank] ** 2)
    if len(sums) < 2:
        return False
    scale = tolerance * max(value for each in squares.values() for value in each)
    low, high = min(sums, key=lambda place: sums[place]), max(sums, key=lambda place: sums[place])
    if sums[high] - sums[low] < DISTINCT * scale or any(max(each) - min(each) > 2 * scale for each in squares.values()):
        return False
    rest = {place: squares[place][0] - sums[place] for place in sums}
    return min(rest.values()) > -2 * scale and max(rest.values()) - min(rest.values()) <= 2 * scale


def _placed(evidence: Evidence, axes: Sequence[str]) -> tuple[set[str], set[str]]:
    """Axes along which any parameter is sharded, stages of a pipeline among them, and those along which any is
    replicated."""
    placements = evidence.once("placements", lambda: mesh.placements_of(evidence.run))
    sharded = {axis for axis in axes if values.role(axis) == STAGES}
    replicated: set[str] = set()
    for each in placements.values():
        for group in each.groups:
            for axis, placement in group.axes.items():
                (replicated if placement == "replicate" else sharded).add(axis)
            replicated |= set(axes) if ALL_RANKS in group.alike else set()
    return sharded & set(axes), replicated & set(axes)


def _finding(evidence: Evidence, found: Wrong) -> Finding:
    what = "count of zeros in the gradients" if found.is_count else "gradient norm"
    use = f"that is logged as {found.name}" if found.name != CLIPPED else "by which gradients are clipped"
    along = " and ".join(found.missing or found.twice)
    why = ""
    if found.missing:
        why = f": what other ranks along {along} hold is left out"
    elif found.twice:
        is_tied = all(values.role(axis) == STAGES for axis in found.twice)
        what_twice = "a weight that two stages share" if is_tied else f"what ranks along {along} all hold"
        why = f": {what_twice} counts more than once"
    shown = (
        (f"{found.said:.0f}", f"{found.whole:.0f}") if found.is_count else (f"{found.said:.4g}", f"{found.whole:.4g}")
    )
    return Finding(
        rank=None, step=found.first, subject=found.name,
        summary=f"Step {found.first}: the {what} {use} is {shown[0]} on rank {found.rank}, and {shown[1]} of the whole "
        f"model{why}.",
        evidence=tuple(_evidence(evidence, found)),
        remedy=tuple(_remedies(found)),
        facts={
            "series": found.name, "said": found.said, "whole": found.whole, "axes": found.missing or found.twice,
            "missing": found.missing, "twice": found.twice, "ranks": list(evidence.ranks), "cause_class": "clip",
            "last_right_step": found.right,
        },
    )  # fmt: skip


def _evidence(evidence: Evidence, found: Wrong) -> Iterator[str]:
    what = "zeros" if found.is_count else "squares"
    yield (
        f"Added up were the {what} of all gradients of {len(evidence.ranks)} ranks: shards of a parameter add, and "
        "what several ranks hold counts once."
    )
    if found.over is not None:
        alone = (
            f"each rank holds, with those along {' and '.join(found.over)}" if found.over else "each rank holds alone"
        )
        yield f"On every rank it is what one gets from all that {alone}."
    elif found.is_shown:
        yield f"Norms of ranks at other places along {found.missing[0]} are as far apart as what they hold themselves."
    elif not found.is_count:
        yield "It is not the sum over any of the mesh's axes: the cause given is what its being too " + (
            "small speaks for." if found.said < found.whole else "large speaks for."
        )
    yield values.when_text(found.first, found.right)


def _remedies(found: Wrong) -> Iterator[Remedy]:
    because = f"it was {found.said:.4g}, and the gradients that the ranks hold give {found.whole:.4g}"
    if found.is_count:
        yield Remedy(
            "Add up the zeros of shards over the ranks that hold them, and count those of replicas once.", "", because,
        )  # fmt: skip
        return
    yield Remedy(
        "Add up squares of shards over the ranks that hold them, stages of a pipeline too, and count what several "
        "ranks hold once, tied weights as well. Of DTensors torch does that: use full_tensor of the norm.",
        "norm = torch.nn.utils.get_total_norm([each.grad for each in model.parameters() if each.grad is not None])\n"
        "norm = norm.full_tensor() if hasattr(norm, 'full_tensor') else norm\n"
        "# with a pipeline: norm.pow_(2), all_reduce over the stages, norm.sqrt_()\n"
        "torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)",
        because,
    )


RULE = Rule(
    name="gradient_norm_wrong",
    title="The gradient norm is not the whole model's",
    severity="warning",
    explanation="The norm by which gradients are clipped, or that is logged, is to be that of all gradients of the "
    "model: squares of shards added up over ranks, and what several ranks hold counted once. A sum over the wrong "
    "ranks clips too much, too little, or each rank otherwise, and the loss looks right. It is recomputed from every "
    "rank's own sums at three steps in `replica_every`, where it is known how all parameters lie along all axes.",
    check=check,
    thresholds=(Threshold("tolerance", 0.002, "relative", "How far a norm may be from the recomputed one."),),
    explains=("replica_mismatch", "gradients_changed"),
)
