"""Rows that are ranks: one each, or neighbours where there are more than room; folded by an axis, or by the node;
or those that stand out and the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch_server.figures.base import Params
from rangewatch_server.figures.heatmaps.rows import row_edges
from rangewatch_server.machines.mesh import Mesh, mesh_of
from rangewatch_server.numerics.outliers import outlying

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader

Array = NDArray[Any]

NODE = "node"
"""What ranks can be folded by beside the axes of the mesh."""

MANY_RANKS = 64
"""From more ranks on those that stand out have rows of their own, and the others are one."""
MOST_ODD = 8


class RankRows(msgspec.Struct, frozen=True):
    """`order`: (ranks,) places among the ranks that were asked for; `starts`: where each row begins among these;
    `meta`: what the rows are called."""

    order: Array
    starts: Array
    meta: list[dict[str, Any]]


def rank_rows(run: RunReader, params: Params) -> RankRows:
    """The rows of a figure's ranks."""
    mesh = mesh_of(run)
    if params.fold:
        return _folded(run, mesh, params)
    starts = row_edges(len(params.ranks), params.rows)
    groups = np.split(np.array(params.ranks, np.int64), starts[1:]) if params.ranks else []
    return RankRows(np.arange(len(params.ranks)), starts, [_row(mesh, group) for group in groups])


def _folded(run: RunReader, mesh: Mesh, params: Params) -> RankRows:
    """A row for each place along the axis, in its order, and one for the ranks of which it is not known."""
    places: dict[Any, list[int]] = {}
    for at, rank in enumerate(params.ranks):
        place = run.ranks[rank].info.host if params.fold == NODE else mesh.coordinates(rank).get(params.fold)
        places.setdefault(place, []).append(at)
    known = [place for place in places if place is not None]
    order = known if params.fold == NODE else sorted(known)
    rows = [(f"{params.fold} {place}", places[place]) for place in order]
    if None in places:
        rows.append((f"{params.fold} unknown", places[None]))
    per = max(1, -(-len(rows) // max(params.rows, 1)))
    merged = [rows[at : at + per] for at in range(0, len(rows), per)]
    members = [[place for _, each in group for place in each] for group in merged]
    names = [group[0][0] if len(group) == 1 else f"{group[0][0]} to {group[-1][0]}" for group in merged]
    meta = [
        _named(name, len(each), params.ranks[each[0]] if len(each) == 1 else None)
        for name, each in zip(names, members, strict=True)
    ]
    starts = np.cumsum([0, *map(len, members[:-1])]) if members else np.zeros(0, np.int64)
    return RankRows(np.array([place for each in members for place in each], np.int64), starts, meta)


def _row(mesh: Mesh, group: Array) -> dict[str, Any]:
    """What a row that stands for these neighbouring ranks is called; of one alone with its place on the mesh."""
    single, first = len(group) == 1, int(group[0])
    row = _named(f"rank {first}" if single else f"ranks {first}-{group[-1]}", len(group), first if single else None)
    place = mesh.place_text(first) if single else ""
    return row | {"place": place} if place else row


def _named(label: str, count: int, rank: int | None) -> dict[str, Any]:
    return {"label": label, "count": count, "tensor": None, "tensors": None, "rank": rank}


def odd_and_others(
    run: RunReader, ranks: Sequence[int], scores: Array, rows: int
) -> tuple[list[int], Array, list[dict[str, Any]]]:
    """Of many ranks: places of those that stand out, by rank; places of the others, which are one row; and the rows.

    `scores`: (ranks,) of `numerics.outliers.robust_scores`. With any grouping of neighbours the one rank that differs
    would be lost in it, or would colour all of it.
    """
    mesh = mesh_of(run)
    odd = sorted(outlying(scores, min(MOST_ODD, max(rows - 1, 0))).tolist())
    others = np.setdiff1d(np.arange(len(ranks)), odd)
    meta = [_row(mesh, np.array([ranks[place]], np.int64)) for place in odd]
    return odd, others, [*meta, _named(f"{len(others):,} {'others' if odd else 'ranks'}", 1, None)]
