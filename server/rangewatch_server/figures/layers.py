"""Tensor by step: headroom of every tensor in call order, for one rank or the worst of several."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rangewatch.records import TensorEntry
from rangewatch_server.figures.base import Figure, Grid, Params, grid_of, label
from rangewatch_server.figures.heatmap import Cells, heatmap
from rangewatch_server.headroom import State, headroom_bits, states
from rangewatch_server.pyramid import RANGES, Block
from rangewatch_server.store.names import Tensors

if TYPE_CHECKING:
    from rangewatch_server.queries import RunReader

Array = NDArray[Any]

COLUMNS = ("call_count", "amax", "nan_count", "inf_count")


def chosen(tensors: Tensors, kinds: Sequence[str], q: str) -> Array:
    """Ordinals of the tensors of those kinds (all when empty) whose name holds `q`, in call order."""
    wanted = q.lower()
    ordinals = [
        ordinal
        for ordinal, entry in enumerate(tensors.entries)
        if (not kinds or entry.kind in kinds) and wanted in label(entry).lower()
    ]
    found = np.array(ordinals, np.int64)
    return found[np.argsort(tensors.call_index[found], kind="stable")]


def build(run: RunReader, params: Params) -> dict[str, Any]:
    """The figure `layers` of docs/api.md."""
    tensors = run.names().tensors
    order = chosen(tensors, params.kinds, params.q)
    cut = grid_of(run, params)
    cells = read(run, params, cut, order, tensors)
    starts = row_edges(len(order), params.rows)
    groups = np.split(order, starts[1:]) if len(order) else []
    return heatmap(cells.pooled(starts, 0), [_row(tensors.entries, group) for group in groups], cut)


def read(run: RunReader, params: Params, cut: Grid, order: Array, tensors: Tensors) -> Cells:
    """Cells of the tensors `order`, in that order, pooled to the grid's columns."""
    if not len(order):
        return Cells(np.zeros((0, cut.width), np.float32), np.zeros((0, cut.width), np.uint8))
    rows = np.sort(order)
    block = run.slice(RANGES, params.ranks, cut.level, cut.start, cut.stop, COLUMNS, rows)
    cells = cells_of(block, tensors).pooled(cut.edges(block.first, block.width), 1)
    mark_stale(run, params, cut, cells.state)
    position = np.searchsorted(rows, order)
    return Cells(cells.bits[position], cells.state[position])


def cells_of(block: Block, tensors: Tensors) -> Cells:
    """Headroom and state of every cell of a block of ranges."""
    bits = headroom_bits(block.columns["amax"], tensors.log2_max[block.rows])
    return Cells(bits, states(block.columns, bits))


def mark_stale(run: RunReader, params: Params, cut: Grid, state: Array) -> None:
    """Columns past the last step of ranks that have gone silent are stale, not merely unobserved."""
    silent = [run.silent_since(rank) for rank in params.ranks]
    if silent and all(step is not None for step in silent):
        past = (cut.first + np.arange(cut.width)) * cut.per > max(step for step in silent if step is not None)
        state[:, past] = np.where(state[:, past] == State.NOT_OBSERVED, np.uint8(State.STALE), state[:, past])


def row_edges(count: int, rows: int) -> Array:
    """Where each of at most `rows` groups of neighbours begins; empty for nothing."""
    per = max(1, -(-count // max(rows, 1)))
    return np.arange(0, count, per)


def _row(entries: list[TensorEntry], group: Array) -> dict[str, Any]:
    first, last = int(group[0]), int(group[-1])
    single = len(group) == 1
    return {
        "label": label(entries[first]) if single else group_label([entries[each].fqn for each in group]),
        "count": len(group), "tensor": first if single else None, "tensors": [first, last],
    }  # fmt: skip


def group_label(names: list[str]) -> str:
    """What a row that stands for several neighbours is called: the module they share, or the first and the last."""
    if len(set(names)) == 1:
        return names[0] or "(model)"
    columns = zip(*(name.split(".") for name in names), strict=False)
    shared = [parts[0] for parts in itertools.takewhile(lambda parts: len(set(parts)) == 1, columns)]
    return ".".join([*shared, "*"]) if shared else f"{names[0] or '(model)'} to {names[-1] or '(model)'}"


FIGURE = Figure("layers", "Headroom by layer", "Each tensor's headroom in bits over steps, in call order.", build)
