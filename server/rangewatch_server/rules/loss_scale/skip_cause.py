"""Why the loss scaler skipped a step: what was not finite, on which ranks, and what of it was first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.wire.records import KINDS, MOMENTS, TensorEntry
from rangewatch_server.core import deadline
from rangewatch_server.numerics import first_nonfinite
from rangewatch_server.numerics.headroom import limits_of
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.query.reader import RunReader
from rangewatch_server.rules.loss_scale.history import History

Array = NDArray[Any]

CLASSES = {
    "forward": ("output", "input", "weight", "scaled_input", "scaled_weight"),
    "gradient": ("grad_output", "grad", "scaled_grad_output"),
    "reduction": ("reduced_grad", "update", *MOMENTS),
}
"""What was not finite first: then the scale is to blame for a gradient alone."""

MOST_RANKS = 8
"""Ranks with NaN or Inf whose tensors are examined: on more it is the same overflow as a rule. Those go first that had
none of that class in the last taken step, then the lowest."""

MOST_TENSORS = 256
"""Tensors of one step that are listed."""

HISTORY = 64
"""Steps before a drop in which the largest finite magnitude is searched for."""


class Bad(msgspec.Struct, frozen=True):
    """A tensor of a rank that held NaN or Inf at the step."""

    rank: int
    tensor: int
    nan_count: int
    inf_count: int
    numel: int


class Cause(msgspec.Struct, frozen=True):
    """`what`: a key of `CLASSES`, or `unknown` where nothing that was recorded is to blame.

    `ranks`: those with NaN or Inf in tensors of that class. `tensors`: of the first one's rank the first `MOST_TENSORS`
    in call order; `tensor_count`: how many there were. `amax`: the first one's largest finite magnitude in the
    `HISTORY` steps before, None where none was seen; `limit_dtype`: the dtype whose limit it met.
    """

    step: int
    what: str
    ranks: tuple[int, ...] = ()
    first: Bad | None = None
    tensors: tuple[Bad, ...] = ()
    tensor_count: int = 0
    amax: float | None = None
    amax_step: int | None = None
    limit_dtype: str = "unknown"
    headroom_bits: float | None = None


class Layer(msgspec.Struct, frozen=True):
    """A tensor that held NaN or Inf at skipped steps: at how many it was first, and at how many it did."""

    tensor: int
    first: int
    overflows: int
    last_step: int


def cause_of(run: RunReader, step: int) -> Cause:
    """Why the step was skipped."""
    deadline.check()
    first_step = run.first_step or 0
    by_class = _ranks(run, step)
    usual_at = _last_taken(run, first_step, step)
    usual = {} if usual_at is None else _ranks(run, usual_at)
    new = {rank for name, each in by_class.items() for rank in each if rank not in usual.get(name, ())}
    bad = {rank for each in by_class.values() for rank in each}
    ranks = sorted(bad, key=lambda rank: (rank not in new, rank))[:MOST_RANKS]
    by_rank = {rank: each for rank in ranks if (each := _bad(run, rank, step, usual_at))}
    firsts = [each[0] for each in by_rank.values()]
    call_index = run.names().tensors.call_index
    first = min(firsts, key=lambda each: (call_index[each.tensor], each.rank), default=None)
    if first is None:
        return Cause(step, "unknown")
    what = _class_of(run, first.tensor)
    unseen = set(by_class[what]) - set(ranks) - set(usual.get(what, ()))
    shown = tuple(rank for rank in by_class[what] if rank in by_rank or rank in unseen)
    amax, amax_step = _amax_before(run, first, max(first_step, step - HISTORY), step)
    dtype = computed_in(run.names().tensors.entries, first.tensor)
    limit = limits_of(dtype).max_finite
    bits = float(np.log2(limit / amax)) if amax and np.isfinite(limit) else None
    mine = by_rank[first.rank]
    return Cause(step, what, shown, first, tuple(mine[:MOST_TENSORS]), len(mine), amax, amax_step, dtype, bits)


def computed_in(entries: Sequence[TensorEntry], tensor: int) -> str:
    """The dtype that a tensor was computed in: autocast turns gradients of float16 into those of a float32 weight."""
    entry = entries[tensor]
    module = entry.fqn.rpartition(".")[0]
    is_cast = entry.kind == "grad" and any(
        each.fqn == module and each.kind in ("output", "grad_output") and each.dtype == "float16" for each in entries
    )
    return "float16" if is_cast else entry.dtype


def _class_of(run: RunReader, tensor: int) -> str:
    kind = run.names().tensors.entries[tensor].kind
    return next(name for name, kinds in CLASSES.items() if kind in kinds)


def _ranks(run: RunReader, step: int) -> dict[str, tuple[int, ...]]:
    """Ranks with NaN or Inf in any tensor of a class."""
    ranks = sorted(run.ranks)
    block = run.by_rank(ranks, 0, step, step + 1, ("nan_count", "inf_count"))
    counts = (block.columns["nan_count"] + block.columns["inf_count"]).reshape(len(ranks), len(KINDS))
    rows = {name: [KINDS.index(kind) for kind in kinds] for name, kinds in CLASSES.items()}
    return {
        name: tuple(np.asarray(ranks)[counts[:, at].sum(axis=1) > 0].tolist()) if ranks else ()
        for name, at in rows.items()
    }


def _last_taken(run: RunReader, start: int, stop: int) -> int | None:
    """The last step of [start, stop) that no rank skipped. Near by as a rule, which costs a tile or two."""
    near = max(start, stop - HISTORY)
    step = History(run, near, stop).last_taken(stop)
    return step if step is not None or near == start else History(run, start, near).last_taken(near)


def _bad(run: RunReader, rank: int, step: int, usual_at: int | None) -> list[Bad]:
    """Tensors with NaN or Inf, the one that was first, then the others in call order.

    One that holds Inf in a step that was taken as well does so always, as a mask: it made nobody skip.
    """
    tensors = run.names().tensors
    columns = _columns(run, rank, step)
    if usual_at is not None:
        usual = _columns(run, rank, usual_at)["inf_count"] > 0
        columns["inf_count"] = np.where(usual & (columns["nan_count"] == 0), 0.0, columns["inf_count"])
    at = first_nonfinite.first_bad(columns, tensors.call_index, tensors.kind_rows)
    if at is None:
        return []
    bad = np.flatnonzero((columns["nan_count"] > 0) | (columns["inf_count"] > 0))
    order = bad[np.argsort(tensors.call_index[bad], kind="stable")]
    counts = [columns[name] for name in ("nan_count", "inf_count", "numel")]
    return [Bad(rank, int(row), *(int(each[row]) for each in counts)) for row in (at, *order[order != at])]


def _columns(run: RunReader, rank: int, step: int) -> dict[str, Array]:
    names = run.names()
    wanted = [name for name in (*first_nonfinite.COLUMNS, "numel") if name in names.fill[RANGES]]
    block = run.slice(RANGES, [rank], 0, step, step + 1, wanted, np.arange(len(names.tensors.entries)))
    return {name: np.asarray(values[:, 0], np.float64) for name, values in block.columns.items()}


def _amax_before(run: RunReader, bad: Bad, start: int, stop: int) -> tuple[float | None, int | None]:
    if start >= stop:
        return None, None
    rows = np.array([bad.tensor])
    amax = run.slice(RANGES, [bad.rank], 0, start, stop, ["amax"], rows).columns["amax"][0]
    at = int(amax.argmax())
    return (float(amax[at]), start + at) if amax[at] > 0 else (None, None)


def by_layer(causes: Iterable[Cause]) -> list[Layer]:
    """The tensors of these causes, those first that were the first most often."""
    first: Counter[int] = Counter()
    overflows: Counter[int] = Counter()
    last: dict[int, int] = {}
    for cause in causes:
        if cause.first is not None:
            first[cause.first.tensor] += 1
        for bad in cause.tensors:
            overflows[bad.tensor] += 1
            last[bad.tensor] = max(last.get(bad.tensor, -1), cause.step)
    layers = [Layer(tensor, first[tensor], count, last[tensor]) for tensor, count in overflows.items()]
    return sorted(layers, key=lambda each: (-each.first, -each.overflows, each.tensor))


def largest(run: RunReader, rows: Sequence[int], level: int, start: int, stop: int) -> dict[int, float]:
    """Tensor -> its largest finite magnitude in these steps, of any rank; none where it had none."""
    if not rows or start >= stop:
        return {}
    wanted = np.unique(np.asarray(rows))
    amax = run.slice(RANGES, sorted(run.ranks), level, start, stop, ["amax"], wanted).columns["amax"].max(axis=1)
    return {int(row): float(value) for row, value in zip(wanted, amax, strict=True) if value > 0}
