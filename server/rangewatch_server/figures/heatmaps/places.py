"""The exact step of a heatmap row's worst, where a column holds several: `step` of `meta.rows` in docs/api.md.

The pyramid keeps the step of each largest magnitude and of each first NaN or Inf, so that one column is read, and no
step by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rangewatch.statistics import CELL
from rangewatch_server.figures.base import Grid
from rangewatch_server.figures.heatmaps.heatmap import Cells, cells_of
from rangewatch_server.figures.heatmaps.rows import scores
from rangewatch_server.numerics import pyramid
from rangewatch_server.numerics.headroom import SEVERITY, State
from rangewatch_server.numerics.pyramid import AMAX_STEP, NO_STEP, NONFINITE_STEP, RANGES, Block

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader

Array = NDArray[Any]
Members = tuple[tuple[int, ...], Array]
"""Of a row: its ranks, and its tensors by ordinal."""


def add_steps(
    run: RunReader, rows: Sequence[dict[str, Any]], cells: Cells, cut: Grid, members: Sequence[Members], most: int
) -> None:
    """Give the worst `most` of `rows` their `step`: of the first NaN or Inf, else of the least headroom.

    `cells`: (rows, columns) of headroom. A row of which nothing was observed has none, nor one without members.
    """
    if not cells.bits.size or cut.per == 1:
        return
    is_bad = cells.is_nonfinite
    value = np.where(np.isfinite(scores(cells)), cells.bits, np.inf)
    columns = np.where(is_bad.any(axis=1), is_bad.argmax(axis=1), value.argmin(axis=1))
    worst = np.where(is_bad.any(axis=1), columns - is_bad.shape[1], value.min(axis=1))  # as the page lists them
    order = np.argsort(worst, kind="stable")[:most].tolist()
    wanted = [row for row in order if len(members[row][1]) and _is_known(cells, row)]
    alike: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for row in wanted:
        alike.setdefault((int(columns[row]), members[row][0]), []).append(row)
    for (column, ranks), together in alike.items():
        steps = _steps(run, ranks, cut, column, [members[row][1] for row in together])
        for row, step in zip(together, steps, strict=True):
            if step is not None:
                rows[row]["step"] = step


def _is_known(cells: Cells, row: int) -> bool:
    return bool((cells.is_nonfinite[row] | cells.has_headroom[row]).any())


def _steps(
    run: RunReader, ranks: tuple[int, ...], cut: Grid, column: int, tensors: Sequence[Array]
) -> list[int | None]:
    """Of some tensors each, in one column of the grid, over these ranks."""
    start = max(cut.start, (cut.first + column) * cut.per)
    stop = min(cut.stop, (cut.first + column + 1) * cut.per)
    ordinals = np.unique(np.concatenate(tensors))
    block = run.slice(RANGES, list(ranks), cut.level, start, stop, (*CELL, AMAX_STEP, NONFINITE_STEP), ordinals)
    whole = pyramid.reduce_axis(block.columns, run.names().rules[RANGES], 1)
    one = Block(block.level, 0, ordinals, {name: np.asarray(values)[:, None] for name, values in whole.items()})
    cells = cells_of(one, run.names().tensors)
    return [_step_of(cells, whole, np.searchsorted(ordinals, each)) for each in tensors]


def _step_of(cells: Cells, whole: dict[str, Array], at: Array) -> int | None:
    state = cells.state[at, 0]
    if (SEVERITY[state] >= SEVERITY[State.INF]).any():
        step = float(whole[NONFINITE_STEP][at].min())
    else:
        bits = np.where(cells.has_headroom[at, 0], cells.bits[at, 0], np.inf)
        step = float(whole[AMAX_STEP][at][int(bits.argmin())])
    return int(step) if step < NO_STEP else None
