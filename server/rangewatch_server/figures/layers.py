"""Tensor by step: a statistic of every tensor or closed module, of one rank or the worst of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from rangewatch_server.figures import reading
from rangewatch_server.figures.base import Figure, Grid, Params, grid_of
from rangewatch_server.figures.heatmap import Cells, heatmap
from rangewatch_server.figures.module_tree import tree
from rangewatch_server.figures.name_filter import is_within, name_filter
from rangewatch_server.figures.rows import (
    Unit,
    by_name,
    flat,
    group_label,
    grouped,
    row,
    row_edges,
    units,
    worst_first,
)
from rangewatch_server.figures.shown import CELL as COLUMNS
from rangewatch_server.figures.shown import HEADROOM, Shown, named
from rangewatch_server.pyramid import Block
from rangewatch_server.store.names import Tensors

if TYPE_CHECKING:
    from rangewatch_server.queries import RunReader

__all__ = ["COLUMNS", "FIGURE", "arranged", "cells_of", "chosen", "group_label", "read", "row_edges"]

Array = NDArray[Any]


def chosen(tensors: Tensors, kinds: Sequence[str], q: str, module: str = "") -> Array:
    """Ordinals of the tensors of those kinds (all when empty) that `q` means and `module` has, in call order.

    Raises `ApiError` where `q` is an expression that cannot be read.
    """
    is_wanted = name_filter(q)
    ordinals = [
        ordinal
        for ordinal, entry in enumerate(tensors.entries)
        if (not kinds or entry.kind in kinds) and is_wanted(entry) and (not module or is_within(entry.fqn, module))
    ]
    found = np.array(ordinals, np.int64)
    return found[np.argsort(tensors.call_index[found], kind="stable")]


def build(run: RunReader, params: Params) -> dict[str, Any]:
    """The figure `layers` of docs/api.md."""
    tensors, shown = run.names().tensors, named(params.statistic)
    order = chosen(tensors, params.kinds, params.q)
    cut = grid_of(run, structs.replace(params, columns=reading.columns_for(shown, params.columns, len(order))))
    cells = read(run, params, cut, order, tensors, shown)
    notes = [reading.note(run, params.ranks, cut, len(order), shown)]
    if shown.is_full_set:
        cells, when = reading.held(cells, cut.per)
        notes.append(when)
    of, pooled = arranged(tensors, params, order, cells, 0)
    starts = row_edges(len(of), params.rows)
    groups = [row(tensors.entries, group, params.sort == "call") for group in grouped(of, starts)]
    found = heatmap(pooled.pooled(starts, 0), groups, cut, shown)
    found["meta"]["note"] = "; ".join(each for each in (found["meta"]["note"], *notes) if each)
    if params.tree:
        found["meta"]["modules"] = tree(tensors.entries, order, cells, shown, params.tree)
    return found


def read(run: RunReader, params: Params, cut: Grid, order: Array, tensors: Tensors, shown: Shown = HEADROOM) -> Cells:
    """Cells of the tensors `order`, in that order, pooled to the grid's columns."""
    cells = reading.read(run, params.ranks, cut, order, tensors, shown)
    reading.mark_stale(run, params.ranks, cut, cells.state)
    return cells


def arranged(tensors: Tensors, params: Params, order: Array, cells: Cells, axis: int) -> tuple[list[Unit], Cells]:
    """The tensors as closed modules and single ones in the order asked for, and the cells so.

    `cells` has the tensors of `order` along `axis`.
    """
    sorted_order = by_name(order, tensors.entries) if params.sort == "name" else order
    of = units(sorted_order, tensors.entries, params.closed)
    members, starts = flat(of)
    if not of or (params.sort == "call" and not params.closed):
        return of, cells
    place = np.empty(len(tensors.entries), np.int64)
    place[order] = np.arange(len(order))
    pooled = cells.taken(place[members], axis).pooled(starts, axis)
    if params.sort != "worst":
        return of, pooled
    first = worst_first(pooled if axis == 0 else Cells(pooled.bits.T, pooled.state.T))
    return [of[at] for at in first], pooled.taken(first, axis)


def cells_of(block: Block, tensors: Tensors) -> Cells:
    """Headroom and state of every cell of a block of ranges."""
    return reading.cells_of(block, tensors, HEADROOM)


FIGURE = Figure("layers", "Headroom by layer", "Each tensor's headroom in bits over steps, in call order.", build)
