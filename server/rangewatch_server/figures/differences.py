"""Two sides' cells compared: bits of headroom that this side has more, and the greatest losses. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch_server.figures.heatmap import Cells
from rangewatch_server.numerics import headroom
from rangewatch_server.numerics.headroom import State

Array = NDArray[Any]


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
    comparable = has_headroom(here) & has_headroom(there)
    with np.errstate(invalid="ignore"):
        difference = np.where(comparable, here.bits - there.bits, np.float32(np.nan))
    return Compared(here, there, difference.astype(np.float32))


def has_headroom(cells: Cells) -> Array:
    """Cells whose headroom is a number: nothing in them is NaN or Inf, and something is not zero."""
    return ((cells.state == State.VALUE) | (cells.state == State.SATURATED)) & np.isfinite(cells.bits)


def is_nonfinite(cells: Cells) -> Array:
    """Cells that hold a NaN or Inf."""
    return (cells.state == State.INF) | (cells.state == State.NAN)


def losses(compared: Compared, most: int) -> list[Loss]:
    """At most so many tensors: those that hold NaN or Inf here alone by when, then by how many bits they have lost."""
    if not compared.difference.size:
        return []
    broken = is_nonfinite(compared.here) & has_headroom(compared.there)
    lost = np.where(np.isnan(compared.difference), np.inf, compared.difference)
    breaks: Array = np.any(broken, axis=1)
    column = np.where(breaks, broken.argmax(axis=1), lost.argmin(axis=1))
    least: Array = np.min(lost, axis=1)
    order = np.lexsort((least, np.where(breaks, column, 0), ~breaks))
    kept = [row for row in order.tolist() if breaks[row] or np.isfinite(least[row])]
    return [Loss(row, int(column[row]), bool(breaks[row])) for row in kept[:most]]


def _of_rows(cells: Cells, at: list[Array], starts: Array) -> Cells:
    _, state = headroom.pool(cells.bits, cells.state, starts, 0)
    return Cells(_picked(cells.bits, at), state)


def _picked(values: Array, at: list[Array]) -> Array:
    """(groups, columns): of each column the value in the row that `at` has for the group."""
    columns = np.arange(values.shape[1])
    return np.stack([values[rows, columns] for rows in at])
