"""Tensor by step: how many bits of headroom more, or less, than at another step, on another rank or in another run.

What a figure is compared with: another step, rank or run, looked up in the store. Which tensor of one run is which of
another goes by name, kind and index, and never by guess.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from rangewatch_server.core import deadline
from rangewatch_server.core.errors import ApiError
from rangewatch_server.figures.base import Figure, FigureData, Grid, Params, grid_of, label, typed
from rangewatch_server.figures.heatmaps import heatmap
from rangewatch_server.figures.heatmaps.heatmap import Cells
from rangewatch_server.figures.heatmaps.rows import Unit, grouped, row, row_edges
from rangewatch_server.figures.name_filter import chosen
from rangewatch_server.numerics import headroom
from rangewatch_server.numerics.headroom import STATE_NAMES
from rangewatch_server.store.names import Tensors

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader

Array = NDArray[Any]
Name = tuple[str, str, int]

PATTERN = re.compile(r"(step|rank|run):(\d{1,15})", re.ASCII)
SCALE_BITS = 8.0  # to either side; fixed, never stretched to the data, so that two comparisons compare by eye
MOST_LOSSES = 50
MOST_NAMES = 50  # of tensors that one side alone has
MOST_CELLS = 1 << 24  # of a side: 64 MiB, and some more of each while they are compared


class Against(msgspec.Struct, frozen=True):
    """The other side of a comparison."""

    kind: str
    number: int
    run: RunReader
    """That of the other side: the same one, but for `run:N`."""
    ranks: tuple[int, ...]
    step: int | None = None
    """The one step that all columns are compared with; None: each with its own."""

    def meta(self) -> dict[str, Any]:
        """As `meta.against` of docs/api.md."""
        return {
            "kind": self.kind, "number": self.number, "run": self.run.name, "ranks": len(self.ranks),
            "first_step": self.run.first_step, "last_step": self.run.last_step,
        }  # fmt: skip


def resolve(run: RunReader, params: Params) -> Against | None:
    """The other side, or None where none is asked for. Raises `ApiError` for what cannot be, or is not there."""
    if not params.against:
        return None
    match = PATTERN.fullmatch(params.against)
    if match is None:
        raise ApiError(422, "bad_parameter", "against must be step:N, rank:N or run:N")
    return {"step": _step, "rank": _rank, "run": _run}[match[1]](run, params, int(match[2]))


def _step(run: RunReader, params: Params, step: int) -> Against:
    first, last = run.first_step, run.last_step
    if first is None or last is None or not first <= step <= last:
        raise ApiError(404, "unknown_step", f"run {run.id} has no step {step}")
    return Against("step", step, run, params.ranks, step)


def _rank(run: RunReader, params: Params, rank: int) -> Against:
    if rank not in run.ranks:
        raise ApiError(404, "unknown_rank", f"run {run.id} has no rank {rank}")
    return Against("rank", rank, run, (rank,))


def _run(run: RunReader, params: Params, number: int) -> Against:
    """All ranks with all ranks, and one with the same one."""
    other = run.reader.run(number)
    if other is None:
        raise ApiError(404, "unknown_run", f"there is no run {number}")
    if params.all_ranks:
        return Against("run", number, other, tuple(sorted(other.ranks)))
    for rank in params.ranks:
        if rank not in other.ranks:
            raise ApiError(404, "unknown_rank", f"run {number} has no rank {rank}")
    return Against("run", number, other, params.ranks)


class Pairs(msgspec.Struct, frozen=True):
    """`here[i]` and `there[i]` are ordinals of the same tensor in two runs; the others are of one only."""

    here: Array
    there: Array
    only_here: list[int]
    only_there: list[int]


def pairs(here: Tensors, order: Array, there: Tensors, other_order: Array, named: Callable[[str], str] = str) -> Pairs:
    """Pairs in the order of `order`. Of a name that has several dtypes, those of one dtype belong together.

    `named`: the name by which a tensor is paired. Tensors of one run that come to the same by it keep their own.
    """
    others = _by_name(there, other_order, named)
    matches: dict[int, int] = {}
    for name, mine in _by_name(here, order, named).items():
        matches |= _same(mine, others.get(name, {}))
    matched = [int(each) for each in order if int(each) in matches]
    taken = set(matches.values())
    return Pairs(
        np.array(matched, np.int64),
        np.array([matches[each] for each in matched], np.int64),
        [int(each) for each in order if int(each) not in matches],
        [int(each) for each in other_order if int(each) not in taken],
    )


def _by_name(tensors: Tensors, order: Array, named: Callable[[str], str]) -> dict[Name, dict[str, int]]:
    """(name, kind, index) -> dtype -> ordinal."""
    entries = [(ordinal, tensors.entries[ordinal]) for ordinal in order.tolist()]
    meant = Counter((named(each.fqn), each.kind, each.index, each.dtype) for _, each in entries)
    by_name: dict[Name, dict[str, int]] = defaultdict(dict)
    for ordinal, entry in entries:
        name = named(entry.fqn)
        is_own = meant[name, entry.kind, entry.index, entry.dtype] > 1
        by_name[entry.fqn if is_own else name, entry.kind, entry.index][entry.dtype] = ordinal
    return by_name


def _same(here: dict[str, int], there: dict[str, int]) -> dict[int, int]:
    """Two of one dtype; and of what is left one with one, as a run in bfloat16 is compared with one in float16."""
    same = {ordinal: there[dtype] for dtype, ordinal in here.items() if dtype in there}
    left = [ordinal for dtype, ordinal in here.items() if dtype not in there]
    others = [ordinal for dtype, ordinal in there.items() if dtype not in here]
    return same | (dict(zip(left, others, strict=True)) if len(left) == len(others) == 1 else {})


class Compared(msgspec.Struct, frozen=True):
    """Cells of this side and of the other, (tensors, columns) each, with the difference of what can be compared."""

    here: Cells
    there: Cells
    difference: Array
    """float32 bits that this side has more than the other; NaN where either has no headroom."""

    def pooled(self, starts: Array) -> Compared:
        """Groups of neighbours as one row: of each column the tensor that has lost most, and the worst states."""
        if len(starts) == len(self.difference):
            return self
        groups = np.split(np.arange(len(self.difference)), starts[1:])
        lost = np.where(np.isnan(self.difference), np.inf, self.difference)
        at = [group[0] + lost[group].argmin(axis=0) for group in groups]
        return Compared(_of_rows(self.here, at, starts), _of_rows(self.there, at, starts), _picked(self.difference, at))


class Loss(msgspec.Struct, frozen=True):
    """Where a tensor has lost most: its `row` and `column`; `broke`: it holds NaN or Inf here, and not there."""

    row: int
    column: int
    broke: bool


def compare(here: Cells, there: Cells) -> Compared:
    """The two sides of as many tensors and columns."""
    comparable = here.has_headroom & there.has_headroom
    with np.errstate(invalid="ignore"):
        difference = np.where(comparable, here.bits - there.bits, np.float32(np.nan))
    return Compared(here, there, difference.astype(np.float32))


def losses(compared: Compared, most: int) -> list[Loss]:
    """At most so many tensors: those that hold NaN or Inf here alone by when, then by how many bits they have lost."""
    if not compared.difference.size:
        return []
    broken = compared.here.is_nonfinite & compared.there.has_headroom
    lost = np.where(np.isnan(compared.difference), np.inf, compared.difference)
    breaks: Array = np.any(broken, axis=1)
    column = np.where(breaks, broken.argmax(axis=1), lost.argmin(axis=1))
    least: Array = np.min(lost, axis=1)
    order = np.lexsort((least, np.where(breaks, column, 0), ~breaks))
    rows = [row for row in order.tolist() if breaks[row] or np.isfinite(least[row])]
    return [Loss(row, int(column[row]), bool(breaks[row])) for row in rows[:most]]


def _of_rows(cells: Cells, at: list[Array], starts: Array) -> Cells:
    _, state = headroom.pool(cells.bits, cells.state, starts, 0)
    return Cells(_picked(cells.bits, at), state)


def _picked(values: Array, at: list[Array]) -> Array:
    """(groups, columns): of each column the value in the row that `at` has for the group."""
    columns = np.arange(values.shape[1])
    return np.stack([values[rows, columns] for rows in at])


def build(run: RunReader, params: Params) -> FigureData:
    """The figure `comparison` of docs/api.md; without another side an empty one."""
    other = resolve(run, params)
    if other is None:
        return [], grid_of(run, params).meta() | {"against": None}
    paired, tensors = _paired(run, params, other), run.names().tensors
    cut = _cut(run, params, other, len(paired.here))
    here = _read(run, params.ranks, cut, paired.here)
    compared = compare(here, _there(params, other, cut, paired.there))
    starts = row_edges(len(paired.here), params.rows)
    pooled, rows = compared.pooled(starts), _rows(tensors, paired.here, starts)
    meta = cut.meta() | _cells_meta(pooled, rows) | _sides_meta(run, other, paired)
    lost = [_loss(each, compared, paired, run, other, cut) for each in losses(compared, MOST_LOSSES)]
    cells = {"name": "difference", **cut.origin, "z": typed(pooled.difference, "f4")}
    return [cells] if rows else [], meta | {"losses": lost}


def _cut(run: RunReader, params: Params, other: Against, tensors: int) -> Grid:
    """Columns that both sides have whole, fewer where there are very many tensors."""
    merged = run.steps_a_row(params.ranks, params.start, params.stop)
    if other.step is None:
        thinned = other.run.thinned(other.ranks, params.start, params.stop)
        theirs = other.run.steps_a_row(other.ranks, params.start, params.stop)
        merged = max(merged, theirs, thinned.per if thinned else 1)
    columns = max(1, min(params.columns, MOST_CELLS // max(tensors, 1)))
    return grid_of(run, structs.replace(params, columns=columns), merged)


def _paired(run: RunReader, params: Params, other: Against) -> Pairs:
    here, there = run.names().tensors, other.run.names().tensors
    return pairs(here, chosen(here, params.kinds, params.q), there, chosen(there, params.kinds, params.q))


def _there(params: Params, other: Against, cut: Grid, order: Array) -> Cells:
    """Cells of the other side, as many columns as `cut` has."""
    if other.step is None:
        return _read(other.run, other.ranks, cut, order)
    # Of merged or thinned history the one column that holds the step holds others too.
    asked = structs.replace(params, ranks=other.ranks, start=other.step, stop=other.step + 1, columns=1)
    one = _read(other.run, other.ranks, grid_of(other.run, asked), order)
    shape = (len(order), cut.width)
    return Cells(np.broadcast_to(one.bits[:, :1], shape), np.broadcast_to(one.state[:, :1], shape))


def _read(run: RunReader, ranks: tuple[int, ...], cut: Grid, order: Array) -> Cells:
    deadline.check()
    cells = heatmap.read(run, ranks, cut, order)
    heatmap.mark_stale(run, ranks, cut, cells.state)
    return cells


def _cells_meta(pooled: Compared, rows: list[dict[str, Any]]) -> dict[str, Any]:
    bad = pooled.here.is_nonfinite | pooled.there.is_nonfinite
    title = "Difference in headroom"
    return {
        "rows": rows, "state_names": STATE_NAMES,
        "statistic": heatmap.scale_meta("difference_bits", title, "bits", "greatest loss", -SCALE_BITS, SCALE_BITS),
        "states": typed(pooled.here.state, "u1"), "other_states": typed(pooled.there.state, "u1"),
        "bits": typed(np.where(pooled.here.has_headroom, pooled.here.bits, np.nan), "f4"),
        "nonfinite_columns": np.flatnonzero(bad.any(axis=0)).tolist() if bad.size else [],
    }  # fmt: skip


def _rows(tensors: Tensors, order: Array, starts: Array) -> list[dict[str, Any]]:
    units = [Unit(each) for each in order[:, None]]
    return [row(tensors.entries, group) for group in grouped(units, starts)]


def _sides_meta(run: RunReader, other: Against, paired: Pairs) -> dict[str, Any]:
    return {
        "against": other.meta(), "first_step": run.first_step, "last_step": run.last_step,
        "matched": len(paired.here),
        "only_here": _names(run.names().tensors, paired.only_here),
        "only_there": _names(other.run.names().tensors, paired.only_there),
        "other_damaged_tiles": 0 if other.run is run else len(other.run.damage),  # this run's own are in `damaged`
    }  # fmt: skip


def _names(tensors: Tensors, ordinals: list[int]) -> dict[str, Any]:
    return {"count": len(ordinals), "labels": [label(tensors.entries[each]) for each in ordinals[:MOST_NAMES]]}


def _loss(loss: Loss, compared: Compared, paired: Pairs, run: RunReader, other: Against, cut: Grid) -> dict[str, Any]:
    at = (loss.row, loss.column)
    here, there = int(paired.here[loss.row]), int(paired.there[loss.row])
    entry, start = run.names().tensors.entries[here], (cut.first + loss.column) * cut.per
    return {
        "tensor": here, "other_tensor": there, "label": label(entry), "dtype": entry.dtype,
        "other_dtype": other.run.names().tensors.entries[there].dtype,
        "start": max(start, cut.start), "stop": min(start + cut.per, cut.stop),
        "difference_bits": None if loss.broke else float(compared.difference[at]),
        "bits": _bits(compared.here, at), "other_bits": _bits(compared.there, at),
        "state": STATE_NAMES[compared.here.state[at]], "other_state": STATE_NAMES[compared.there.state[at]],
    }  # fmt: skip


def _bits(cells: Cells, at: tuple[int, int]) -> float | None:
    one = Cells(cells.bits[at][None], cells.state[at][None])
    return float(one.bits[0]) if one.has_headroom[0] else None


FIGURE = Figure(
    name="comparison", title="Difference in headroom", build=build, data="bits more; none without rows", unit="bits",
    help="Bits of headroom that each tensor has more than at another step, on another rank or in another run.",
)  # fmt: skip
