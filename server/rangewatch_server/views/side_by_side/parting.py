"""Where two runs part: the first step at which their losses differ, and the tensor that differs first there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rangewatch_server.core import deadline
from rangewatch_server.figures import comparison
from rangewatch_server.figures.base import Params, grid, label
from rangewatch_server.figures.heatmaps import heatmap
from rangewatch_server.figures.heatmaps.heatmap import Cells
from rangewatch_server.figures.lines import series_columns
from rangewatch_server.figures.name_filter import chosen
from rangewatch_server.numerics.headroom import STATE_NAMES
from rangewatch_server.query.reader import RunReader

Array = NDArray[Any]

LOSS = "loss"
CHUNK = 8_192  # columns compared at once
MOST_COLUMNS = 1 << 18  # compared at all: of a longer pair it is said how far
WINDOW = 64  # steps before the losses part in which tensors are looked at
MOST_CELLS = 1 << 22
MOST_TENSORS = 50
SAME_BITS = 0.005  # less than this is written as no difference


def losses(reference: RunReader, other: RunReader, tolerance: float) -> dict[str, Any]:
    """`differs`: the first step at which the losses, means of the ranks, are not equal bit for bit; `beyond`: the first
    at which they are apart by more than `tolerance` of the greater; both None where there is none. `steps_per_column`
    is more than 1 where only means of several steps are left. `compared`: steps or columns at which both have a loss.
    """
    start, stop = _common(reference, other)
    per = max(_left(run, start, stop) for run in (reference, other))
    end = min(stop, start + MOST_COLUMNS * per)
    answer: dict[str, Any] = {
        "run": other.id, "start": start, "stop": end, "is_whole": end == stop, "steps_per_column": per, "compared": 0,
        "differs": None, "beyond": None,
    }  # fmt: skip
    if any(LOSS not in run.names().series for run in (reference, other)):
        return answer
    for low in range(start, end, CHUNK * per):
        deadline.check()
        cut = grid(low, min(end, low + CHUNK * per), CHUNK + 2, per)
        one, two = (means(run, cut) for run in (reference, other))
        both = one[1] & two[1]
        answer["compared"] += int(both.sum())
        apart = both & ~((one[0] == two[0]) | (np.isnan(one[0]) & np.isnan(two[0])))
        with np.errstate(invalid="ignore"):
            far = np.abs(one[0] - two[0]) > tolerance * np.maximum(np.abs(one[0]), np.abs(two[0]))
        beyond = apart & (far | (np.isnan(one[0]) != np.isnan(two[0])))
        for name, places in (("differs", apart), ("beyond", beyond)):
            if answer[name] is None and places.any():
                at = int(places.argmax())
                values = [float(each[0][at]) if np.isfinite(each[0][at]) else None for each in (one, two)]
                answer[name] = {"step": max((cut.first + at) * cut.per, start), "values": values}
        if answer["beyond"] is not None:
            break
    return answer


def _common(one: RunReader, two: RunReader) -> tuple[int, int]:
    """The steps that both have reached: [start, stop), none where they share none."""
    if one.last_step is None or two.last_step is None:
        return 0, 0
    start = max(one.first_step or 0, two.first_step or 0)
    return start, max(start, min(one.last_step, two.last_step) + 1)


def _left(run: RunReader, start: int, stop: int) -> int:
    """Steps a column that retention left."""
    thinned = run.thinned(tuple(run.ranks), start, stop) if start < stop else None
    return 1 if thinned is None else thinned.per


def means(run: RunReader, cut: Any) -> tuple[Array, Array]:
    """By column: (width,) mean of the ranks, NaN where one is not finite, and where there is a loss at all."""
    params = Params(start=cut.start, stop=cut.stop, ranks=tuple(sorted(run.ranks)))
    columns = series_columns(run, params, cut, LOSS)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(columns["nonfinite_count"] > 0, np.nan, columns["sum"] / columns["count"])
    return means, columns["count"] > 0


def tensors(reference: RunReader, other: RunReader, parted: dict[str, Any]) -> dict[str, Any]:
    """Of two runs, the tensors whose headroom differs at the first step at which any does, in the `WINDOW` up to where
    the losses part: in call order, so that the first is the one to look at.
    """
    start, stop = _common(reference, other)
    end = parted["differs"]["step"] + 1 if parted["differs"] else stop
    mine, theirs = reference.names().tensors, other.names().tensors
    paired = comparison.pairs(mine, chosen(mine, (), ""), theirs, chosen(theirs, (), ""))
    shared = max(merged(run, max(start, end - WINDOW), end) for run in (reference, other))
    window = max(1, min(WINDOW, MOST_CELLS // max(1, len(paired.here) * shared)))
    cut = grid(max(start, end - window), end, window + 1, shared)
    answer: dict[str, Any] = {
        "other": other.id, "matched": len(paired.here), "start": cut.start, "stop": cut.stop, "step": None, "count": 0,
        "steps_per_column": cut.per, "tensors": [],
    }  # fmt: skip
    if not len(paired.here) or start >= end:
        return answer
    here = heatmap.read(reference, tuple(sorted(reference.ranks)), cut, paired.here)
    there = heatmap.read(other, tuple(sorted(other.ranks)), cut, paired.there)
    difference = comparison.compare(here, there).difference
    with np.errstate(invalid="ignore"):
        apart = (np.abs(difference) > SAME_BITS) | (here.is_nonfinite != there.is_nonfinite)
    columns = np.flatnonzero(apart.any(axis=0))
    if not len(columns):
        return answer
    at = int(columns[0])
    rows = np.flatnonzero(apart[:, at])
    entries, others = mine.entries, theirs.entries
    answer["step"], answer["count"] = max((cut.first + at) * cut.per, start), len(rows)
    answer["tensors"] = [
        {
            "tensor": int(paired.here[row]), "other_tensor": int(paired.there[row]),
            "label": label(entries[int(paired.here[row])]), "dtype": entries[int(paired.here[row])].dtype,
            "other_dtype": others[int(paired.there[row])].dtype,
            "bits": _bits(here, row, at), "other_bits": _bits(there, row, at),
            "state": STATE_NAMES[here.state[row, at]], "other_state": STATE_NAMES[there.state[row, at]],
            "difference_bits": float(difference[row, at]) if np.isfinite(difference[row, at]) else None,
        }
        for row in rows[:MOST_TENSORS].tolist()
    ]  # fmt: skip
    return answer


def merged(run: RunReader, start: int, stop: int) -> int:
    """Steps a column of tensors, as agents merge them or retention left."""
    ranks = tuple(sorted(run.ranks))
    return max(run.steps_a_row(ranks, start, stop), _left(run, start, stop))


def _bits(cells: Cells, row: int, column: int) -> float | None:
    return float(cells.bits[row, column]) if cells.has_headroom[row, column] else None
