"""What every figure shares: parameters, the column grid, lines and typed arrays. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.wire.records import TensorEntry
from rangewatch_server.numerics.pyramid import FANOUT

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader

Array = NDArray[Any]

MAX_COLUMNS = 2_000  # no screen is wider
MAX_ROWS = 1_000


class Params(msgspec.Struct, frozen=True, kw_only=True):
    """What a page asks of a figure; `ranks` are resolved already."""

    start: int
    stop: int
    ranks: tuple[int, ...]
    all_ranks: bool = False
    """Whether all were asked for, of which a run may have one alone."""
    kinds: tuple[str, ...] = ()
    q: str = ""
    tensor: int | None = None
    against: str = ""
    columns: int = 1_000
    rows: int = 400
    statistic: str = ""
    """What a heatmap shows; "" for the figure's own choice."""
    sort: str = "call"
    closed: tuple[str, ...] = ()
    fold: str = ""
    """An axis of the mesh, or "node": the ranks at one place along it are one row, the worst of them."""
    tree: int = 0
    """Modules in `meta.modules` at most; none is sent where none is asked for."""
    places: int = 0
    """Rows of a heatmap of headroom that hold the exact step of their worst, at most: the worst ones."""


FigureData = tuple[list[dict[str, Any]], dict[str, Any]]
"""`data` and `meta` of docs/api.md: names and typed arrays, and what is known of them. Nothing of how it is drawn."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A shelf entry, from which the route, its checks, `meta` and the row of docs/collectors.md follow."""

    name: str
    title: str
    help: str
    data: str
    """What is in `data`, in order, for the docs."""
    build: Callable[[RunReader, Params], FigureData]
    unit: str = ""
    """Of the values, such as `ms`; "" where they have none."""
    scale: Literal["linear", "log2"] = "linear"
    """How lines are best drawn."""
    needs_tensor: bool = False
    """Whether it is of the one tensor that `tensor` names."""


def line(name: str, x: Array, y: Array) -> dict[str, Any]:
    """One line, or the points of one kind: float64 `x` and `y`, both (n,)."""
    return {"name": name, "x": typed(x, "f8"), "y": typed(y, "f8")}


class Grid(msgspec.Struct, frozen=True):
    """The step axis cut into columns: `per` steps each, aligned to step 0, read at pyramid level `level`."""

    start: int
    stop: int
    per: int
    level: int
    thin_step: int = 0
    """Before it the steps are kept at `thin_per` a column; 0 where every step shown is there."""
    thin_per: int = 1

    @property
    def first(self) -> int:
        """Number of the first column: it holds the steps from `first * per`."""
        return self.start // self.per

    @property
    def width(self) -> int:
        """How many columns."""
        return -(-self.stop // self.per) - self.first if self.stop > self.start else 0

    def centres(self) -> Array:
        """(width,) float64: the middle step of each column, cut to the range asked for."""
        left = np.maximum((self.first + np.arange(self.width)) * self.per, self.start)
        right = np.minimum((self.first + np.arange(self.width) + 1) * self.per, self.stop) - 1
        return (left + right) / 2

    def edges(self, block_first: int, block_width: int) -> Array:
        """Where each column starts among a block's columns of `8 ** level` steps, for `reduceat`."""
        per_column = self.per // FANOUT**self.level
        starts = (self.first + np.arange(self.width)) * per_column - block_first
        return np.clip(starts, 0, max(block_width - 1, 0))

    @property
    def origin(self) -> dict[str, float]:
        """Of a heatmap's columns: `x0` the centre of the first one, `dx` how wide each is, in steps."""
        return {"x0": self.first * self.per + (self.per - 1) / 2, "dx": self.per}

    def meta(self) -> dict[str, Any]:
        """The part of `meta` that every figure has."""
        note = "each column: one step" if self.per == 1 else f"each column: worst of {self.per} steps"
        answer: dict[str, Any] = {
            "start": self.start, "stop": self.stop, "steps_per_column": self.per, "columns": self.width,
            "level": self.level, "note": note,
        }  # fmt: skip
        if not self.thin_step:
            return answer
        thinned = f"detail before step {self.thin_step} is kept at {self.thin_per} steps a column"
        return answer | {"note": f"{note}; {thinned}", "thinned": {"step": self.thin_step, "steps": self.thin_per}}


def grid(start: int, stop: int, columns: int, merged: int = 1) -> Grid:
    """A grid of at most `columns` columns, seldom under half of them, each made of whole columns of a pyramid level.

    `merged`: steps that the agents merge into one row, a level's column; no column of the grid is less.
    """
    start, stop = start - start % merged, stop + -stop % merged
    per = max(merged, -(-(stop - start) // columns))
    level = 0
    # A coarser level is read where it costs at most half the columns: eight times fewer tiles for it.
    while _rounded(per, level + 1) <= 2 * per:
        level += 1
    per = _rounded(per, level)
    while (cut := Grid(start, stop, per, level)).width > columns and columns > 1:
        per += FANOUT**level
    return cut


def grid_of(run: RunReader, params: Params, merged: int | None = None) -> Grid:
    """The grid of a figure: no column finer than what agents merged (`merged`) or retention left."""
    merged = run.steps_a_row(params.ranks, params.start, params.stop) if merged is None else merged
    thinned = run.thinned(params.ranks, params.start, params.stop)
    if thinned is None:
        return grid(params.start, params.stop, params.columns, merged)
    cut = grid(params.start, params.stop, params.columns, max(merged, thinned.per))
    return msgspec.structs.replace(cut, thin_step=thinned.step, thin_per=thinned.per)


def _rounded(per: int, level: int) -> int:
    size = FANOUT**level
    return -(-per // size) * size


def typed(values: Array, dtype: str) -> dict[str, Any]:
    """A typed array of docs/api.md: `bdata` is bytes here and base64 once encoded as JSON."""
    data = np.ascontiguousarray(values, np.dtype(f"<{dtype}"))
    encoded: dict[str, Any] = {"dtype": dtype, "bdata": data.tobytes()}
    if data.ndim == 2:
        encoded["shape"] = f"{data.shape[0]}, {data.shape[1]}"
    return encoded


def label(entry: TensorEntry) -> str:
    """A tensor's name for people."""
    suffix = f"[{entry.index}]" if entry.index else ""
    return f"{entry.fqn or '(model)'} {entry.kind}{suffix}"
