"""The modules of a run as a tree with the worst of each, as much of it as a page can show. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.wire.records import TensorEntry
from rangewatch_server.figures.heatmap import Cells
from rangewatch_server.figures.heatmap_values import Shown
from rangewatch_server.figures.rows import modules_of, scores
from rangewatch_server.numerics.headroom import BY_SEVERITY, SEVERITY, STATE_NAMES

Array = NDArray[Any]


class Node(msgspec.Struct):
    """One module: its own and its children's tensors by their place among those shown, in order of the first."""

    path: str
    depth: int
    places: list[int] = msgspec.field(default_factory=list)
    children: list[Node] = msgspec.field(default_factory=list)


def tree(entries: Sequence[TensorEntry], order: Array, cells: Cells, shown: Shown, most: int) -> list[dict[str, Any]]:
    """Modules depth first; where not all fit the outer levels. `cells` has a row for each tensor of `order`."""
    nodes = kept(shortened(_grown(entries, order)), most)
    severity = SEVERITY[cells.state].max(axis=1, initial=0)
    worst = np.fmin.reduce(scores(cells), axis=1, initial=np.nan)
    return [_reported(node, order, severity, worst, shown, {each.path for each in nodes}) for node in nodes]


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
    found: list[Node] = []
    for root in roots:
        node = root
        while len(node.children) == 1 and len(node.children[0].places) == len(node.places):
            node = node.children[0]
        found.append(Node(node.path, depth, node.places, shortened(node.children, depth + 1)))
    return found


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
    found: list[Node] = []
    waiting = nodes[::-1]
    while waiting:
        node = waiting.pop()
        if node.path in chosen:
            found.append(node)
            waiting += node.children[::-1]
    return found


def _reported(
    node: Node, order: Array, severity: Array, worst: Array, shown: Shown, listed: set[str]
) -> dict[str, Any]:
    value = float(np.fmin.reduce(worst[node.places]))
    return {
        "path": node.path, "depth": node.depth, "count": len(node.places),
        "tensor": int(order[node.places[0]]) if len(node.places) == 1 else None,
        "state": STATE_NAMES[BY_SEVERITY[severity[node.places].max()]],
        "worst": shown.sign * value if np.isfinite(value) else None,
        "has_children": any(child.path in listed for child in node.children),
        "hidden_children": sum(child.path not in listed for child in node.children),
    }  # fmt: skip
