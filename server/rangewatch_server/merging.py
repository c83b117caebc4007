"""Pieces of slices into one block: side by side within a rank, the worst where ranks overlap. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rangewatch_server import pyramid
from rangewatch_server.pyramid import FANOUT, UFUNCS, Block
from rangewatch_server.store.rows import align, union

Array = NDArray[Any]


def join(
    pieces: Sequence[Block], level: int, start: int, stop: int, wanted: Sequence[str], rows: Array,
    fill: Mapping[str, float], rules: Mapping[str, str],
) -> Block:  # fmt: skip
    """One block over the columns of [start, stop) with exactly `rows`; cells of no piece hold identities."""
    first, width = start // FANOUT**level, -(-stop // FANOUT**level) - start // FANOUT**level
    aligned = [align(piece, rows, fill) for piece in pieces if piece.width]
    depth = np.zeros(width, np.int64)
    for piece in aligned:
        depth[piece.first - first : piece.first - first + piece.width] += 1
    if any(rules[name] not in UFUNCS for name in wanted) and depth.size and depth.max() > 1:
        return _stacked(aligned, level, first, width, wanted, rows, fill, rules)
    columns = {name: _column(name, aligned, first, depth, len(rows), fill, rules[name]) for name in wanted}
    return Block(level, first, rows, columns)


def sharing_columns(pieces: Sequence[Block]) -> list[list[Block]]:
    """The pieces in groups with no column of the coarser level in common, in order of steps.

    Each group can be made coarser on its own: most are one tile, and nothing of it is copied before it is an eighth.
    """
    groups: list[list[Block]] = []
    past = 0  # the end of the last group, in columns of the coarser level
    for piece in sorted((each for each in pieces if each.width), key=lambda each: each.first):
        if not groups or piece.first // FANOUT >= past:
            groups.append([])
        groups[-1].append(piece)
        past = max(past, -(-(piece.first + piece.width) // FANOUT))
    return groups


def beside(
    pieces: Sequence[Block], wanted: Sequence[str], fill: Mapping[str, float], rules: Mapping[str, str]
) -> Block:
    """The one piece, or all joined over the columns that they span; `pieces` is not empty."""
    if len(pieces) == 1:
        return pieces[0]
    level, size = pieces[0].level, FANOUT ** pieces[0].level
    start, stop = min(each.first for each in pieces), max(each.first + each.width for each in pieces)
    rows = union([each.rows for each in pieces])
    return join(pieces, level, start * size, stop * size, wanted, rows, fill, rules)


def _column(
    name: str, pieces: list[Block], first: int, depth: Array, rows: int, fill: Mapping[str, float], rule: str
) -> Array:
    parts = [(piece.first - first, piece.columns[name]) for piece in pieces if name in piece.columns]
    constant = _constant([values for _, values in parts], depth, rule) if parts else fill[name]
    if constant is not None:
        return np.broadcast_to(constant, (rows, len(depth)))
    narrow = bool(parts) and rule != "sum" and all(v.dtype in (np.float32, np.uint8, np.uint16) for _, v in parts)
    ufunc = UFUNCS.get(rule) if depth.size and depth.max() > 1 else None
    result = np.empty((rows, len(depth)), np.float32 if narrow else np.float64)
    if ufunc or sum(values.shape[1] for _, values in parts) != len(depth):  # else every cell is written once
        result.fill(fill[name])
    for at, values in parts:
        place = result[:, at : at + values.shape[1]]
        if ufunc is None:
            place[:] = values
        else:
            ufunc(place, values, out=place)
    return result


def _constant(parts: list[Array], depth: Array, rule: str) -> float | None:
    """The one value of all cells, when every part is that constant and covers every column equally often."""
    if not parts or not depth.size or depth.min() == 0 or depth.min() != depth.max():
        return None
    if sum(values.shape[1] for values in parts) != depth.sum() or any(any(values.strides) for values in parts):
        return None
    value = float(parts[0].flat[0]) if parts[0].size else 0.0
    if any(values.size and float(values.flat[0]) != value for values in parts):
        return None
    return value * int(depth[0]) if rule == "sum" else value


def _stacked(
    pieces: list[Block], level: int, first: int, width: int, wanted: Sequence[str], rows: Array,
    fill: Mapping[str, float], rules: Mapping[str, str],
) -> Block:  # fmt: skip
    """As `join`, for columns whose merge looks at another column: overlapping pieces are laid over one another."""
    names = list(dict.fromkeys(name for piece in pieces for name in piece.columns))
    whole = [Block(level, first, rows, _spread(piece, first, width, names, fill)) for piece in pieces]
    merged = pyramid.merge_blocks(whole, rules)
    return Block(level, first, rows, {name: merged.columns[name] for name in wanted})


def _spread(block: Block, first: int, width: int, names: list[str], fill: Mapping[str, float]) -> dict[str, Array]:
    before, after = block.first - first, first + width - block.first - block.width
    shape = (len(block.rows), block.width)
    found = {name: block.columns.get(name, np.broadcast_to(fill[name], shape)) for name in names}
    return {name: pyramid.padded(values, before, after, fill[name]) for name, values in found.items()}
