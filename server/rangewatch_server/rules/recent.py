"""The last steps of all tensors of all ranks merged, as rules on growth and decay want them: logarithms, gaps apart."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.wire.records import KINDS
from rangewatch_server.numerics.pyramid import FANOUT, RANGES
from rangewatch_server.rules.evidence import BACKWARD, WINDOW, Evidence

Array = NDArray[Any]

COLUMNS = ("call_count", "amax", "nan_count", "inf_count")

COUNTS = ("call_count", "full_numel", "amax", "zero_count", "subnormal_count")
"""Statistics that ranks are kept merged of."""

SQUARES = ("call_count", "full_numel", "amax", "sum_sq")
"""Those with the sum of squares, of which they are not: it is read from a few ranks."""

TOGETHER = ("weight", "update")
"""Kinds of which two rules want these: they are read at once."""

FEW_RANKS = 8
"""So many, the lowest: a root mean square is reported by some of the ranks as well."""

LEVEL, GROUPS = 2, 64
"""The full set is taken once in 100 steps on a CPU: it is read in groups of 64 steps, the last 4,096."""

MOST_RANKS = 64
"""Ranks that are read one by one to say which of them it is; of more, those whose headroom of the kind is least."""

SAME_BITS = 1.0
"""Ranks that differ by less are alike: none of them is named."""


class Recent(msgspec.Struct, frozen=True):
    """The last `WINDOW` single steps, (n,) `steps`; t tensors in the order of `Evidence.tensors`.

    `observed`: (t, n) bool. `zero`: (t, n) bool, observed and every element 0. `bits`: (t, n) log2 of the largest
    magnitude, NaN where there is none or where the tensor held NaN or Inf. `bad`: (t, n) bool, it did.
    """

    steps: Array
    observed: Array
    zero: Array
    bad: Array
    bits: Array


def recent(evidence: Evidence) -> Recent:
    """What `Recent` says, as the tensors were recorded: gradients still multiplied by the loss scale."""
    window = evidence.window(COLUMNS, WINDOW)
    observed = window.columns["call_count"] > 0
    bad = window.columns["nan_count"] + window.columns["inf_count"] > 0
    amax = window.columns["amax"]
    with np.errstate(divide="ignore"):
        bits = np.where(observed & ~bad & (amax > 0), np.log2(amax), np.nan)
    return Recent(window.steps, observed, observed & ~bad & (amax == 0), bad, bits)


def unscaled(evidence: Evidence, points: Recent) -> Array:
    """(t, n) `bits` with the loss scale taken out of the kinds that it multiplies; NaN where it is not known."""
    if not evidence.is_loss_scaled:
        return points.bits
    scale = (
        evidence.series("loss_scale", int(points.steps[0]), int(points.steps[-1]) + 1) if len(points.steps) else None
    )
    if scale is None:
        return points.bits
    with np.errstate(invalid="ignore", divide="ignore"):
        shift = np.log2(scale)
    is_scaled = np.isin(evidence.tensors.kind_rows, rows_of(BACKWARD))
    return np.where(is_scaled[:, None], points.bits - shift, points.bits)


def rows_of(kinds: tuple[str, ...]) -> list[int]:
    """Places of the kinds in `KINDS`."""
    return [KINDS.index(kind) for kind in kinds]


def tensors_of(evidence: Evidence, *kinds: str) -> Array:
    """Ordinals of the run's tensors of these kinds, ascending."""
    return np.flatnonzero(np.isin(evidence.tensors.kind_rows, rows_of(kinds)))


class History(msgspec.Struct, frozen=True):
    """`columns[name]`: (t, n) statistics of groups of 64 steps, merged over steps and ranks; `starts`, `ends`: (n,) the
    first and the last step of each group; the first group and the last may hold fewer."""

    starts: Array
    ends: Array
    columns: dict[str, Array]

    def share(self, name: str) -> Array:
        """(t, n) a count over the elements that were measured; NaN where none was."""
        measured = self.columns["full_numel"]
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(measured > 0, self.columns[name] / measured, np.nan)

    def rms(self) -> Array:
        """(t, n) root of the mean square of the finite elements; NaN where it was not measured."""
        return np.sqrt(self.share("sum_sq"))


def history(evidence: Evidence, tensors: Array, wanted: tuple[str, ...] = COUNTS) -> History:
    """These statistics, `COUNTS` or `SQUARES`, of tensors (ordinals, ascending): the last `GROUPS` groups of 64 steps.

    Counts are of all ranks, squares of the `FEW_RANKS` lowest. A statistic that the run has not holds its neutral
    element everywhere: `full_numel` 0 says "not measured".
    """
    together = tensors_of(evidence, *TOGETHER) if wanted == SQUARES else tensors
    if len(tensors) and len(together) > len(tensors) and np.isin(tensors, together).all():
        whole = history(evidence, together, wanted)
        at = np.searchsorted(together, tensors)
        return History(whole.starts, whole.ends, {name: values[at] for name, values in whole.columns.items()})
    return evidence.once(("history", wanted, tensors.tobytes()), lambda: _history(evidence, tensors, wanted))


def _history(evidence: Evidence, tensors: Array, wanted: tuple[str, ...]) -> History:
    size = FANOUT**LEVEL
    stop = evidence.whole_stop
    start = max(evidence.start, (stop // size - GROUPS + 1) * size)
    names = tuple(name for name in wanted if name in evidence.run.names().fill[RANGES])
    ranks = evidence.ranks[:FEW_RANKS] if "sum_sq" in wanted else evidence.ranks
    first, width = start // size, max(0, -(-stop // size) - start // size)
    columns = {name: np.zeros((len(tensors), width)) for name in wanted}
    if start < stop and len(tensors) and ranks:
        block = evidence.run.slice(RANGES, list(ranks), LEVEL, start, stop, names, tensors)
        columns |= {name: np.asarray(values, np.float64) for name, values in block.columns.items()}
    starts = (first + np.arange(width)) * size
    return History(np.maximum(start, starts), np.minimum(stop, starts + size) - 1, columns)


def last_finite(values: Array, count: int) -> Array:
    """(k,) the last `count` values of (n,) that are not NaN, in order; fewer where there are not so many."""
    return values[np.isfinite(values)][-count:]


def only_rank(evidence: Evidence) -> int | None:
    """The rank of a run that has one; None where what is merged may be of any."""
    return evidence.ranks[0] if len(evidence.ranks) == 1 else None


def odd_rank(evidence: Evidence, tensor: int, step: int, sign: int = 1) -> tuple[int | None, str]:
    """The rank whose `amax` of the tensor at the step is the largest (`sign` -1: the smallest), and a sentence on the
    others; None where all ranks are alike, or the ranks that were looked at do not show it."""
    if len(evidence.ranks) == 1:
        return evidence.ranks[0], ""
    ranks = _candidates(evidence, tensor, step)
    amax = np.array([evidence.row(tensor, rank, step, step + 1, ("amax",))["amax"][-1] for rank in ranks])
    there = [(each * sign, -rank) for each, rank in zip(amax, ranks, strict=True) if each > 0]
    if len(there) < 2:
        return None, ""
    rank = -max(there)[1]
    own = float(amax[ranks.index(rank)])
    others = float(np.median([each for each, other in zip(amax, ranks, strict=True) if each > 0 and other != rank]))
    if sign * np.log2(own / others) < SAME_BITS:
        return None, f"It is so on all ranks, within {abs(np.log2(own / others)):.1f} bits at step {step}."
    word = "largest" if sign > 0 else "smallest"
    return (
        rank,
        f"It is {word} on rank {rank}: {own:.3g} at step {step}; of the other ranks the median is {others:.3g}.",
    )


def _candidates(evidence: Evidence, tensor: int, step: int) -> list[int]:
    if len(evidence.ranks) <= MOST_RANKS:
        return list(evidence.ranks)
    kind = int(evidence.tensors.kind_rows[tensor])
    block = evidence.run.by_rank(evidence.ranks, 0, step, step + 1, ("bits",))
    bits = block.columns["bits"].reshape(len(evidence.ranks), len(KINDS), -1)[:, kind, 0]
    order = np.argsort(bits, kind="stable")
    return sorted(evidence.ranks[place] for place in [*order[: MOST_RANKS // 2], *order[-MOST_RANKS // 2 :]])
