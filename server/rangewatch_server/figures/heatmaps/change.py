"""How far each tensor's magnitude is from where it was lately: for dtypes so wide that headroom says little.

A column's magnitude is the largest finite one of its steps and ranks, as the pyramid holds it at every level. Its
change is log2 of that less the median of the `BEFORE` columns of the same width before it: a jump of one step is seen
at every zoom, a drop where it lasts a whole column. So a tensor is compared with its own past alone, in bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from rangewatch.statistics import Derived
from rangewatch_server.figures.base import Grid
from rangewatch_server.figures.heatmaps import heatmap
from rangewatch_server.figures.heatmaps.heatmap import STATISTICS, Cells

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader

Array = NDArray[Any]

BEFORE = 64
"""Columns whose median a column is compared with."""
RENEWED = 8
"""Columns that share one median, that of the columns before the first of them: it costs an eighth."""

CHANGE = Derived(
    name="amax_change", title="Change of magnitude", aka="of its own median",
    help="Bits between the largest magnitude and its own median shortly before: +1 is twice as large", unit="bits",
    source="`log2(amax)` less its median over the 64 columns before", scale="change", worst="furthest",
    worst_title="largest change", formula=lambda columns, limit: columns["amax"],
)  # fmt: skip
_AMAX = STATISTICS["amax"]


def read(run: RunReader, ranks: Sequence[int], cut: Grid, order: Array) -> Cells:
    """(tensors of `order`, columns of the grid): scores are `heatmap.folded`; NaN where nothing came before."""
    wide, left = _with_past(run, ranks, cut)
    cells = heatmap.read(run, ranks, wide, order, _AMAX)
    is_known = cells.has_value & np.isfinite(cells.bits)
    log2_amax = np.where(is_known, -cells.bits, np.nan)
    first_seen = (run.first_step or 0) // cut.per
    change = log2_amax[:, left:] - medians(log2_amax, wide.first, first_seen)[:, left:]
    return Cells(heatmap.folded(change), cells.state[:, left:])


def _with_past(run: RunReader, ranks: Sequence[int], cut: Grid) -> tuple[Grid, int]:
    """The grid with the columns before it that its first medians are of, and how many those are."""
    renewed = cut.first // RENEWED * RENEWED
    start = max(0, renewed - BEFORE) * cut.per
    thinned = run.thinned(ranks, start, cut.start) if start < cut.start else None
    if thinned is not None and thinned.per > cut.per:  # what is left of earlier steps is coarser than a column
        start = min(-(-thinned.step // cut.per), cut.first) * cut.per
    wide = structs.replace(cut, start=min(start, cut.start))
    return wide, cut.first - wide.first


def medians(values: Array, first: int, first_seen: int) -> Array:
    """Of (r, n) values, of which the first column has number `first`, for each column the median of those before it.

    `first_seen`: number of the run's first column; until `RENEWED` columns are there, each column has a median of its
    own. NaN where no column before holds a value.
    """
    answer = np.full(values.shape, np.nan, values.dtype)
    at, end = 0, values.shape[1]
    while at < end:
        number = first + at
        is_early = first_seen <= number < first_seen + RENEWED
        until = min(end, at + 1 if is_early else at + RENEWED - number % RENEWED)
        if at:
            answer[:, at:until] = _median(values[:, max(0, at - BEFORE) : at])[:, None]
        at = until
    return answer


def _median(values: Array) -> Array:
    """(r,) of (r, n): of what is no NaN. numpy's own takes a loop in Python for so few columns."""
    ordered = np.sort(values, axis=1)  # NaN last
    count, rows = np.isfinite(ordered).sum(axis=1), np.arange(len(ordered))
    return np.asarray((ordered[rows, np.maximum(count - 1, 0) // 2] + ordered[rows, count // 2]) / 2)
