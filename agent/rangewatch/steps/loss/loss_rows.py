"""How many rows a loss compares, and how many values of each, by the shapes in its graph.

A cross entropy has a row for each target; squared differences and the like have the shape of the prediction. Where no
such function of torch's is there, it is the shape of what the loss is the mean or the sum of, before any other mean or
sum over some dimensions. Shapes alone are read. Of a sum of losses all must have the same rows.
"""

from __future__ import annotations

import re
from typing import Any

from rangewatch.steps.loss.graph_nodes import node_name, node_shape

MOST_NODES = 24
"""Operations that are looked at, the nearest to the loss."""

_OF_CLASSES = re.compile(r"NllLoss(2D|2d|Nd)?Backward\d*")
_OF_VALUES = re.compile(r"(MseLoss|SmoothL1Loss|HuberLoss|BinaryCrossEntropy|BinaryCrossEntropyWithLogits)Backward\d*")
_REDUCTION = re.compile(r"(Mean|Sum)Backward\d*")
_PASSED = re.compile(r"(Mul|Div|ToCopy|To|Squeeze|View|Reshape|Neg|Add|Sub|Rsub|Stack|Unsqueeze)Backward\d*")
"""From the scalar that the loss is to its functions."""


def loss_rows(root: Any) -> tuple[int, ...]:
    """Rows, and sizes of each; () where that is not known, or parts of the loss have other rows."""
    nodes, is_reduced = [] if root is None else [root], set[Any]()
    functions: list[tuple[int, ...]] = []
    means: list[tuple[int, ...]] = []
    for node in nodes:  # which grows
        name = node_name(node)
        children = _children(node)
        if _OF_CLASSES.fullmatch(name) or _OF_VALUES.fullmatch(name):
            shape = node_shape(*children[0]) if children else None
            if not shape:
                return ()
            functions.append(shape if _OF_VALUES.fullmatch(name) else shape[:1] + shape[2:])
            continue
        if _REDUCTION.fullmatch(name) and node not in is_reduced:
            children, shape = _unreduced(children)
            if shape is None:
                return ()
            means.append(shape)
            is_reduced.update(each for each, _ in children)
        elif not _PASSED.fullmatch(name):
            continue
        elif node in is_reduced:
            is_reduced.update(each for each, _ in children)
        for each, _ in children:
            if each not in nodes and len(nodes) < MOST_NODES:
                nodes.append(each)
    known = functions or [each for each in means if each]
    rows = {each[0] for each in known}
    if len(rows) != 1:
        return ()
    return rows.pop(), *(size for each in known for size in each[1:])


def _children(node: Any) -> list[tuple[Any, int]]:
    return [each for each in node.next_functions if each[0] is not None]


def _unreduced(children: list[tuple[Any, int]]) -> tuple[list[tuple[Any, int]], tuple[int, ...] | None]:
    """What a mean or a sum is of, and its shape before any other one over some dimensions that was made before it."""
    while len(children) == 1:
        if not _REDUCTION.fullmatch(node_name(children[0][0])):
            return children, node_shape(*children[0])
        children = _children(children[0][0])
    return [], None
