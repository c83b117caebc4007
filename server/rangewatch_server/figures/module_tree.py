"""The modules of a run as a tree with the worst of each, as much of it as a page can show. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.statistics import Derived
from rangewatch.wire.records import TensorEntry
from rangewatch_server.figures.base import Grid
from rangewatch_server.figures.heatmaps.heatmap import Cells, values_of
from rangewatch_server.figures.heatmaps.rows import modules_of, scores
from rangewatch_server.numerics.headroom import BY_SEVERITY, SEVERITY, STATE_NAMES

Array = NDArray[Any]


class Node(msgspec.Struct):
    """One module: its own and its children's tensors by their place among those shown, in order of the first."""

    path: str
    depth: int
    places: list[int] = msgspec.field(default_factory=list)
    children: list[Node] = msgspec.field(default_factory=list)


def tree(
    entries: Sequence[TensorEntry], order: Array, cells: Cells, statistic: Derived, most: int, cut: Grid | None = None
) -> list[dict[str, Any]]:
    """Modules depth first; where not all fit the outer levels. `cells` has a row for each tensor of `order`.

    `cut`: of its columns, where they are steps: then each module says where NaN or Inf began in it.
    """
    nodes = kept(shortened(_grown(entries, order)), most)
    severity = SEVERITY[cells.state].max(axis=1, initial=0)
    worst = np.fmin.reduce(scores(cells), axis=1, initial=np.nan)
    listed = {each.path for each in nodes}
    reported = [_reported(node, order, severity, worst, statistic, listed) for node in nodes]
    began = _began(cells)
    if cut is not None and began.size and began.min() < cells.state.shape[1]:
        for node, each in zip(nodes, reported, strict=True):
            _add_began(each, node, began, cut)
    return reported


def _began(cells: Cells) -> Array:
    """(r,) the first column in which a row holds NaN or Inf; the number of columns where none does."""
    bad = cells.is_nonfinite
    return np.where(bad.any(axis=1), bad.argmax(axis=1), bad.shape[1]) if bad.size else np.zeros(0, np.int64)


def _add_began(report: dict[str, Any], node: Node, began: Array, cut: Grid) -> None:
    """`began`: the steps, first and last, of the first column that is bad; `is_first`: no other tensor was before."""
    first = began[node.places].min()
    if first < cut.width:
        start = (cut.first + int(first)) * cut.per
        report["began"] = [max(start, cut.start), min(start + cut.per, cut.stop) - 1]
        report["is_first"] = int(began.argmin()) in node.places


def _grown(entries: Sequence[TensorEntry], order: Array) -> list[Node]:
    roots: list[Node] = []
    known: dict[str, Node] = {}
    for place, ordinal in enumerate(order.tolist()):
        beside = roots
        for depth, path in enumerate(modules_of(entries[ordinal].fqn)):
            if path not in known:
                known[path] = Node(path, depth)
                beside.append(known[path])
            known[path].places.append(place)
            beside = known[path].children
    return roots


def shortened(roots: list[Node], depth: int = 0) -> list[Node]:
    """Without modules that hold one other and nothing else, as `blocks.0` where all of it is `blocks.0.ff`.

    No deeper than `MOST_LEVELS`.
    """
    nodes: list[Node] = []
    for root in roots:
        node = root
        while len(node.children) == 1 and len(node.children[0].places) == len(node.places):
            node = node.children[0]
        nodes.append(Node(node.path, depth, node.places, shortened(node.children, depth + 1)))
    return nodes


def kept(roots: list[Node], most: int) -> list[Node]:
    """At most that many, each level before the next one, and the children of a module all or none."""
    chosen: set[str] = set()
    level: list[list[Node]] = [roots]
    while level:
        following: list[list[Node]] = []
        for siblings in level:
            if len(chosen) + len(siblings) > most:
                continue
            chosen.update(node.path for node in siblings)
            following += [node.children for node in siblings if node.children]
        level = following
    return _in_order(roots, chosen)


def _in_order(nodes: list[Node], chosen: set[str]) -> list[Node]:
    ordered: list[Node] = []
    waiting = nodes[::-1]
    while waiting:
        node = waiting.pop()
        if node.path in chosen:
            ordered.append(node)
            waiting += node.children[::-1]
    return ordered


def _reported(
    node: Node, order: Array, severity: Array, worst: Array, statistic: Derived, listed: set[str]
) -> dict[str, Any]:
    value = float(np.fmin.reduce(worst[node.places]))
    return {
        "path": node.path, "depth": node.depth, "count": len(node.places),
        "tensor": int(order[node.places[0]]) if len(node.places) == 1 else None,
        "state": STATE_NAMES[BY_SEVERITY[severity[node.places].max()]],
        "worst": float(values_of(np.array(value), statistic)) if np.isfinite(value) else None,
        "has_children": any(child.path in listed for child in node.children),
        "hidden_children": sum(child.path not in listed for child in node.children),
    }  # fmt: skip
