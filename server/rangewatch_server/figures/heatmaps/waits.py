"""Rank by step: how long each rank waited for the others in its collectives, and whom they waited for.

Collectives are matched across ranks, which costs too much for a whole run. A range of few steps is read whole; of a
longer one a step of each column is, so that what is read is bounded, and the figure says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rangewatch_server.collectives import reader
from rangewatch_server.collectives.matching import match
from rangewatch_server.collectives.summary import NO_DIFFERENCE_S
from rangewatch_server.collectives.waits import Waits, waits_of
from rangewatch_server.core import deadline
from rangewatch_server.core.text import duration_text
from rangewatch_server.figures.base import Figure, FigureData, Grid, Params, grid, typed
from rangewatch_server.figures.heatmaps.rank_rows import MANY_RANKS, odd_and_others, rank_rows
from rangewatch_server.numerics.outliers import robust_scores

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader

Array = NDArray[Any]

LOOKS = 48
"""Columns of a range that is too long to be read whole: as many reads of one step."""
LEAST_LOOKS = 12
RANK_LOOKS = 768
"""Ranks times columns: with more ranks fewer columns, each costs a piece of stored samples."""
LAYERS = 3
"""Of a cell: its wait, what it cost the others added up over them, and the same as time on the wall."""


def build(run: RunReader, params: Params) -> FigureData:
    """The figure `waits` of docs/api.md."""
    low, high = reader.searched_range(run, params.start, params.stop)
    is_whole = low == params.start or params.stop - params.start <= reader.MOST_STEPS
    cut = grid(params.start, params.stop, params.columns if is_whole else _looks(len(params.ranks)))
    cells = np.full((LAYERS, len(params.ranks), cut.width), np.nan)
    if low < high:
        for start, stop in [(low, high)] if is_whole else _single_steps(cut, high):
            deadline.check()
            _fill(cells, cut, params.ranks, waits_of(match(reader.chunks(run, start, stop - 1))))
    rows, (wait_s, cost_s, delay_s), spread = _rows(run, cells, params)
    meta = cut.meta() | {
        "note": _note(cut, is_whole) + spread, "is_whole": is_whole, "rows": rows, "delay_s": typed(delay_s, "f4"),
        "cost_to_others_s": typed(cost_s, "f4"), "empty": None if low < high else "no collectives were recorded",
    }  # fmt: skip
    return [{"name": "wait_s", **cut.origin, "z": typed(wait_s, "f4")}], meta


def _looks(ranks: int) -> int:
    return max(LEAST_LOOKS, min(LOOKS, RANK_LOOKS // max(1, ranks)))


def _single_steps(cut: Grid, stop: int) -> Iterator[tuple[int, int]]:
    """The last step of each column, of the newest one the newest: fixed as long as the columns are."""
    for column in range(cut.width):
        step = min((cut.first + column + 1) * cut.per, stop) - 1
        if step >= max(cut.start, (cut.first + column) * cut.per):
            yield step, step + 1


def _fill(cells: Array, cut: Grid, ranks: tuple[int, ...], waits: Waits) -> None:
    """The longest wait of each cell, and the largest cost; what is not known stays NaN."""
    inside = (waits.steps >= cut.start) & (waits.steps < cut.stop)
    columns = waits.steps[inside] // cut.per - cut.first
    known = waits.known_count > 0
    for place, values in enumerate((waits.wait_s, waits.cost_to_others_s, waits.delay_s)):
        shown = np.where(known, values, np.nan)[:, inside]
        for row, rank in enumerate(ranks):
            at = int(np.searchsorted(waits.ranks, rank))
            if at < len(waits.ranks) and waits.ranks[at] == rank:
                np.fmax.at(cells[place, row], columns, shown[at])


def _rows(run: RunReader, cells: Array, params: Params) -> tuple[list[dict[str, Any]], list[Array], str]:
    """What the rows are called, the layers by row, and what is said of ranks that are merged. `cells`: (layers, ranks,
    columns)."""
    if len(params.ranks) <= MANY_RANKS or params.fold:
        ranks = rank_rows(run, params)
        return ranks.meta, [_pooled(each[ranks.order], ranks.starts) for each in cells], ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of what nothing is known the mean is NaN
        scores = robust_scores(np.nanmean(cells[2], axis=1), NO_DIFFERENCE_S)
        odd, others, rows = odd_and_others(run, params.ranks, scores, params.rows)
        merged = [np.concatenate([each[odd], np.nanmedian(each[others], axis=0)[None]]) for each in cells]
    wait_s = cells[0][others]
    known = wait_s[np.isfinite(wait_s)]
    if not len(known):
        return rows, merged, ""
    low, high = np.percentile(known, (5, 95)).tolist()
    return rows, merged, f"; {rows[-1]['label']}: median, 5-95 % {duration_text(low)} to {duration_text(high)}"


def _pooled(cells: Array, starts: Array) -> Array:
    """The worst of each group of ranks."""
    return cells if len(starts) == len(cells) or not len(cells) else np.fmax.reduceat(cells, starts, axis=0)


def _note(cut: Grid, is_whole: bool) -> str:
    if cut.per == 1:
        return "each column: one step"
    return f"each column: {'worst' if is_whole else 'one step looked at'} of {cut.per} steps"


FIGURE = Figure(
    name="waits", title="Waits by rank", build=build, data="seconds, a row a rank", unit="s",
    help="How long each rank waited for the others in its collectives.",
)  # fmt: skip
