"""Where exactly: the worst value in a rectangle of a run, and the frames of one rank and step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.statistics import ALL, DERIVED
from rangewatch.statistics.sparse import is_sparse
from rangewatch.wire.events import ACCOUNTS
from rangewatch.wire.records import KINDS
from rangewatch_server.figures.base import grid, label
from rangewatch_server.figures.heatmaps.heatmap import Cells, cells_of
from rangewatch_server.numerics import first_nonfinite, pyramid
from rangewatch_server.numerics.headroom import SEVERITY, STATE_NAMES, State, limits_of
from rangewatch_server.numerics.pyramid import AMAX_STEP, FANOUT, NONFINITE_STEP, RANGES, SUMMARY, Block
from rangewatch_server.numerics.whole import whole, whole_or_none
from rangewatch_server.query.reader import RunReader
from rangewatch_server.store.batch_checks import MAX_TIME_NS
from rangewatch_server.store.names import Tensors

Array = NDArray[Any]

CELL = ("call_count", "amax", "nan_count", "inf_count")
SEARCH_COLUMNS = 64  # locate reads this many columns at most, then one step
UNDERFLOW_FRACTION = 0.01  # below that it is the tail that any bell-shaped distribution has
OTHER_PLACE = re.compile(r"(input|output)\[\d{1,6}\]", re.ASCII)
OTHER_WORDS = ("None", "not a tensor", "integer tensor", "bool tensor")
AROUND_COLUMNS = 512  # the previous and next non-finite step are searched for at this width first


class Place(msgspec.Struct, frozen=True):
    """One tensor at one step of one rank, with what was found there."""

    step: int
    rank: int
    tensor: int
    label: str
    state: str
    bits: float | None


def locate(run: RunReader, ranks: Sequence[int], start: int, stop: int, rows: Array) -> Place | None:
    """The worst of a rectangle: the first NaN or Inf in order of step and call, else the least headroom."""
    tensors = run.names().tensors
    places = [place for rank in ranks if (place := _worst(run, rank, start, stop, rows, tensors)) is not None]
    if not places:
        return None
    bad = [place for place in places if place.state in ("inf", "nan")]
    if bad:
        return min(bad, key=lambda place: (place.step, tensors.position[place.tensor], place.rank))
    return min(places, key=lambda place: (np.inf if place.bits is None else place.bits, place.step))


def _worst(run: RunReader, rank: int, start: int, stop: int, rows: Array, tensors: Tensors) -> Place | None:
    if not len(rows):
        return None
    wanted = (*CELL, AMAX_STEP, NONFINITE_STEP)
    there = _there(run, rank, start, stop, SEARCH_COLUMNS)
    block = run.slice(RANGES, [rank], there.level, there.start, there.stop, wanted, rows)
    whole = pyramid.reduce_axis(block.columns, run.names().rules[RANGES], 1)
    one = Block(there.level, 0, rows, {name: values[:, None] for name, values in whole.items()})
    cells = cells_of(one, tensors)
    severity = SEVERITY[cells.state[:, 0]]
    if severity.max() <= SEVERITY[State.NOT_OBSERVED]:
        return None
    if severity.max() >= SEVERITY[State.INF]:
        step = int(whole[NONFINITE_STEP].min())
        row = _first_bad_row(run, rank, step, rows, np.flatnonzero(whole[NONFINITE_STEP] == step))
    else:
        bits = np.where(np.isnan(cells.bits[:, 0]), np.inf, cells.bits[:, 0])
        row = int(np.where(severity > SEVERITY[State.NOT_OBSERVED], bits, np.inf).argmin())
        step = int(whole[AMAX_STEP][row])
    return place_at(run, rank, step, int(rows[row]))


class _Steps(msgspec.Struct, frozen=True):
    """Steps [start, stop) that are read at `level`."""

    start: int
    stop: int
    level: int


def _there(run: RunReader, rank: int, start: int, stop: int, columns: int) -> _Steps:
    """[start, stop) as it is kept, in about `columns` columns at most.

    Thinned steps are there in whole columns only: an end inside of one is moved to its end, unless the single steps of
    that end were kept, and no level finer than theirs is read.
    """
    level = grid(start, stop, columns).level
    thinned = run.thinned((rank,), start, stop)
    if thinned is None:
        return _Steps(start, stop, level)
    if run.thinned((rank,), start, start + 1) is not None:
        start -= start % thinned.per
    if run.thinned((rank,), stop - 1, stop) is not None:
        stop += -stop % thinned.per
    return _Steps(start, stop, max(level, _level_of(thinned.per)))


def _level_of(per: int) -> int:
    return (per.bit_length() - 1) // (FANOUT.bit_length() - 1)


def _first_bad_row(run: RunReader, rank: int, step: int, rows: Array, bad: Array) -> int:
    """Place in `rows` of the one that held NaN or Inf first at this very step; `bad` are the places of all that did.

    Of a step that was thinned only they are known: then it is the first of them in call order.
    """
    tensors = run.names().tensors
    wanted = [name for name in first_nonfinite.COLUMNS if name in run.names().fill[RANGES]]
    block = run.slice(RANGES, [rank], 0, step, step + 1, wanted, rows)
    columns = {name: values[:, 0] for name, values in block.columns.items()}
    first = first_nonfinite.first_bad(columns, tensors.call_index[rows], tensors.kind_rows[rows])
    return int(bad[tensors.call_index[rows[bad]].argmin()]) if first is None else first


def place_at(run: RunReader, rank: int, step: int, tensor: int) -> Place:
    """What one tensor held at one step of one rank; of a thinned step what its column still shows of it."""
    tensors = run.names().tensors
    rows = np.array([tensor])
    block = run.slice(RANGES, [rank], 0, step, step + 1, CELL, rows)
    if not block.columns["call_count"].any() and (thinned := run.thinned((rank,), step, step + 1)) is not None:
        block = _of_column(run, rank, step, _level_of(thinned.per), rows)
    cells = cells_of(block, tensors)
    state = State(int(cells.state[0, 0]))
    bits = float(cells.bits[0, 0])
    shown = bits if state in (State.VALUE, State.SATURATED) and np.isfinite(bits) else None
    return Place(step, rank, tensor, label(tensors.entries[tensor]), STATE_NAMES[state], shown)


def _of_column(run: RunReader, rank: int, step: int, level: int, rows: Array) -> Block:
    """The thinned column of `step`, without what it holds of its other steps.

    It shows a step when that has its largest magnitude, or its first NaN or Inf; else nothing is known of the step.
    """
    low = step - step % FANOUT**level
    wanted = (*CELL, AMAX_STEP, NONFINITE_STEP)
    block = run.slice(RANGES, [rank], level, low, low + FANOUT**level, wanted, rows)
    columns = {name: values[:, :1] for name, values in block.columns.items()}
    is_bad, is_largest = columns[NONFINITE_STEP] == step, columns[AMAX_STEP] == step
    known = {name: np.where(is_bad, columns[name], 0.0) for name in ("nan_count", "inf_count")}
    known["call_count"] = np.where(is_bad | is_largest, columns["call_count"], 0.0)
    return Block(level, block.first, rows, columns | known)


def nonfinite_step(run: RunReader, rank: int, start: int, stop: int, last: bool) -> int | None:
    """The first (or last) step in [start, stop) at which the rank held a NaN or Inf; of a thinned column its first."""
    low, high = start, stop
    while low < high:
        there = _there(run, rank, low, high, AROUND_COLUMNS)
        column = _bad_column(run, rank, there, last)
        if column is None:
            return None
        if (column.start, column.stop) == (there.start, there.stop):  # one step, or nothing finer is kept of all of it
            steps = _known_steps(run, rank, column, start, stop, last)
            if steps:
                return max(steps) if last else min(steps)
            # A column that reaches past an end, where its step is: the next one does not.
            ends = (start, column.start) if last else (column.stop, stop)
            return nonfinite_step(run, rank, *ends, last)
        low, high = column.start, column.stop
    return None


def _bad_column(run: RunReader, rank: int, steps: _Steps, last: bool) -> _Steps | None:
    """The first (or last) column that holds a NaN or Inf, cut to `steps`."""
    size = FANOUT**steps.level
    block = run.slice(SUMMARY, [rank], steps.level, steps.start, steps.stop, ("nan_count", "inf_count"))
    bad = np.flatnonzero((block.columns["nan_count"] + block.columns["inf_count"]).sum(axis=0) > 0)
    if not len(bad):
        return None
    at = (block.first + int(bad[-1 if last else 0])) * size
    return _Steps(max(steps.start, at), min(steps.stop, at + size), steps.level)


def _known_steps(run: RunReader, rank: int, column: _Steps, start: int, stop: int, last: bool) -> list[int]:
    """Steps of [start, stop) with a NaN or Inf that a bad column knows: its first, and those kept more finely."""
    inside = [_Steps(max(start, column.start), min(stop, column.stop), level) for level in range(column.level)]
    finer = [bad for each in inside if (bad := _bad_column(run, rank, each, last)) is not None]
    return [step for each in (column, *finer) if start <= (step := _first_bad_step(run, rank, each)) < stop]


def _first_bad_step(run: RunReader, rank: int, column: _Steps) -> int:
    if column.level == 0:
        return column.start
    block = run.slice(RANGES, [rank], column.level, column.start, column.stop, [NONFINITE_STEP])
    return int(block.columns[NONFINITE_STEP].min(initial=pyramid.NO_STEP))


def frames(run: RunReader, rank: int, step: int) -> list[dict[str, Any]]:
    """Every tensor that the rank observed at the step, or in the steps that were merged with it, in call order."""
    names = run.names()
    wanted = [name for name in names.fill[RANGES] if name not in {AMAX_STEP, NONFINITE_STEP} and not is_sparse(name)]
    block = run.slice(RANGES, [rank], 0, step, step + 1, wanted)
    if not block.columns["call_count"].any():
        at = _row_step(run, rank, step)
        block = run.slice(RANGES, [rank], 0, at, at + 1, wanted)
    if not len(block.rows):
        return []
    seen = np.flatnonzero(block.columns["call_count"][:, 0] > 0)
    cells = cells_of(block, names.tensors)
    order = sorted(seen, key=lambda row: (names.tensors.call_index[block.rows[row]], block.rows[row]))
    all_frames = [_frame(names.tensors, block, cells, int(row)) for row in order]
    meant = _inf_by_design(run, rank, block)
    for each in all_frames:
        if each["tensor"] in meant and not each["nan_count"]:
            each["what"] = by_design(meant[each["tensor"]], each["numel"])
    return all_frames


def _inf_by_design(run: RunReader, rank: int, block: Block) -> dict[int, int]:
    """Tensor -> its elements that are Inf by design, in the step or the row that a block is of."""
    rows = run.inf_by_design
    if not len(rows):
        return {}
    counts = run.stored(RANGES, [rank], 0, block.first, block.first + 1, ["inf_count"], rows).columns["inf_count"][:, 0]
    return {int(row): int(count) for row, count in zip(rows, counts, strict=True) if count > 0}


def by_design(count: int, numel: int) -> str:
    """One line on Inf that is meant."""
    return f"{count} Inf of {numel}, by design"


def _row_step(run: RunReader, rank: int, step: int) -> int:
    """The step under which the row of a `step` without one of its own came; the step itself where there is none.

    It is the last of the merged steps. Where several rows follow in their column the steps came one by one, and this
    one was dropped; where none follows it has not come, or never was.
    """
    most = max(run.ship_every, run.steps_a_row_at(rank, step))
    if most == 1:
        return step
    stop = step - step % most + most
    block = run.slice(RANGES, [rank], 0, step, stop, ["call_count"])
    observed = np.flatnonzero(block.columns["call_count"].any(axis=0)) + block.first
    if not len(observed):
        return step
    every = run.steps_a_row_at(rank, int(observed[0]))
    return int(observed[0]) if np.count_nonzero(observed // every == step // every) == 1 else step


def first_bad(frames: Sequence[dict[str, Any]]) -> int | None:
    """Which of a step's frames, as docs/api.md has them, held NaN or Inf first; None when all are finite."""
    columns = {name: np.array([frame[name] for frame in frames], np.float64) for name in first_nonfinite.COLUMNS}
    kind_rows = np.array([KINDS.index(frame["kind"]) for frame in frames], np.int64)
    return first_nonfinite.first_bad(columns, np.arange(len(frames)), kind_rows)


def other_values(run: RunReader, rank: int, step: int) -> dict[str, dict[str, str]]:
    """What the modules of the rank took and gave that were no tensors: module -> "input[1]" -> "None".

    An agent may send anything: only what a report can show comes through.
    """
    account = run.account("other_values", rank, step)
    given = None if account is None else account.read(ACCOUNTS["other_values"])
    return {fqn: _known_values(values) for fqn, values in (given or {}).items()}


def _known_values(values: dict[str, Any]) -> dict[str, str]:
    return {
        where: word if word in OTHER_WORDS else "not a tensor"
        for where, word in values.items()
        if OTHER_PLACE.fullmatch(where)
    }


_ABSENT = {each.name: each.identity for each in ALL}  # a catalogue may lack any but what ingest asks for


def _frame(tensors: Tensors, block: Block, cells: Cells, row: int) -> dict[str, Any]:
    value = _ABSENT | {name: float(values[row, 0]) for name, values in block.columns.items()}
    ordinal = int(block.rows[row])
    entry, state = tensors.entries[ordinal], State(int(cells.state[row, 0]))
    limits = limits_of(entry.dtype)
    finite = value["numel"] - value["nan_count"] - value["inf_count"] > 0
    bits = float(cells.bits[row, 0])
    frame = tensor_details(ordinal, tensors) | {
        "call_count": whole(value["call_count"]), "numel": whole(value["numel"]),
        "amax": value["amax"] if finite else None,
        "nan_count": whole(value["nan_count"]), "inf_count": whole(value["inf_count"]),
        "nonfinite_ns": whole_or_none(value.get(first_nonfinite.NONFINITE_NS, np.inf)),
        "headroom_bits": bits if finite and np.isfinite(bits) else None,
        "state": STATE_NAMES[state], "what": what(state, value, bits, entry.dtype),
    }  # fmt: skip
    return frame | full_set(value, limits.smallest_normal)


def tensor_details(ordinal: int, tensors: Tensors) -> dict[str, Any]:
    """A tensor as docs/api.md has it; its `call_index` is its place among the run's tensors."""
    entry = tensors.entries[ordinal]
    limits = limits_of(entry.dtype)
    known = limits.dtype != "unknown"
    return {
        "tensor": ordinal, "label": label(entry), "fqn": entry.fqn, "kind": entry.kind, "index": entry.index,
        "module": entry.module, "dtype": entry.dtype, "shape": list(entry.shape),
        "call_index": int(tensors.position[ordinal]),
        "max_finite": limits.max_finite if known else None,
        "smallest_normal": limits.smallest_normal if known else None,
    }  # fmt: skip


def full_set(value: dict[str, float], smallest_normal: float) -> dict[str, Any]:
    """amin, rms, shares and floor room, or null for each when the full set was not measured at this step."""
    derived = [each for each in DERIVED if each.is_full_set]
    if value.get("full_numel", 0.0) <= 0:
        return {"full": False} | {each.name: None for each in derived}
    with np.errstate(divide="ignore", invalid="ignore"):
        values = {each.name: float(each.formula(value, smallest_normal)) for each in derived}
    return {"full": True} | {name: each if np.isfinite(each) else None for name, each in values.items()}


def what(state: State, value: dict[str, float], bits: float, dtype: str) -> str:
    """One line for a person."""
    counts = f"{whole(value['nan_count'])} NaN, {whole(value['inf_count'])} Inf of {whole(value['numel'])}"
    subnormal = value.get("subnormal_count", 0.0) / max(value.get("full_numel", 0.0), 1.0)
    return {
        State.NAN: counts,
        State.INF: counts,
        State.SATURATED: f"saturated: {bits:.2f} bits below the {dtype} limit",
        State.ZERO: "all zero" if value["numel"] else "empty",
    }.get(state, underflow(subnormal))


def underflow(subnormal_fraction: float | None) -> str:
    """What to say of elements that have lost precision, being below the smallest normal number; "" for few."""
    if subnormal_fraction is None or subnormal_fraction < UNDERFLOW_FRACTION:
        return ""
    return f"underflow: {100 * subnormal_fraction:.1f} % subnormal"


def step_details(run: RunReader, rank: int, step: int) -> dict[str, Any]:
    """Loss, loss scale, skip and times of one rank's step; null where nothing was recorded.

    `thinned`: how many steps a column the step is kept at, which says nothing of each; null where it would be there.
    """
    names = run.names().series
    thinned = run.thinned((rank,), step, step + 1)
    block = run.slice(pyramid.SERIES_PART, [rank], 0, step, step + 1, ("count", "last"), np.arange(len(names)))
    value = {
        name: float(block.columns["last"][row, 0]) for name, row in names.items() if block.columns["count"][row, 0] > 0
    }
    finite = {name: each if np.isfinite(each) else None for name, each in value.items()}
    loss = value.get("loss")
    wall_time_s = finite.get("wall_time_s")
    return {
        "loss": finite.get("loss"),
        "loss_state": None if loss is None else "nan" if np.isnan(loss) else "inf" if np.isinf(loss) else "value",
        "loss_scale": finite.get("loss_scale"), "found_inf": _flag(finite.get("found_inf")),
        "skipped": _flag(finite.get("skipped_step")), "step_time_s": finite.get("step_time_s"),
        "started_ns": None if wall_time_s is None else _unix_ns(wall_time_s),
        "series": finite, "thinned": None if thinned is None else {"step": thinned.step, "steps": thinned.per},
    }  # fmt: skip


def _unix_ns(wall_time_s: float) -> int | None:
    """None for what is no time: databases hold what was taken before times had bounds."""
    return int(wall_time_s * 1e9) if 0 <= wall_time_s <= MAX_TIME_NS / 1e9 else None


def _flag(value: float | None) -> bool | None:
    return None if value is None else value > 0
