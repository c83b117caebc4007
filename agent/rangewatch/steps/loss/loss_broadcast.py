"""Event `loss_broadcast`: a loss in which every prediction is compared with every target, as its graph says.

A prediction of shape (B, 1) and a target of (B,) are broadcast to (B, B), and the best answer is then the mean of all
targets. It is known by shapes alone: one operand of a loss has a gradient and is spread over the batch a second time by
another that has none, and what comes of it goes to a mean or a sum through operations on single elements. Where both
have a gradient pairs are meant, and so they are where the loss adds the dimension itself, as with `unsqueeze`, or is
given something of all pairs besides, such as a product of matrices.
"""

from __future__ import annotations

import math
import re
from collections import deque
from typing import Any, NamedTuple

from torch import Tensor

from rangewatch.recording.events import Events
from rangewatch.steps.loss.graph_nodes import kept_value, node_name, node_shape
from rangewatch.wire.events import LossBroadcast

MOST_BACKWARDS = 8
"""The first backwards, whose graphs are looked at; and each that is the first of another kind."""

MOST_NODES = 64
"""Operations of one, the nearest to the loss."""

FEWEST = 5
"""Rows of a batch. Of fewer it may be chance that another size is the same: channels of a picture, some quantiles."""

_DEPTH = 8
"""Operations below a prediction among which one that adds a dimension is looked for."""

_OF_SCALARS = re.compile(r"(Mul|Div|ToCopy|To|Squeeze|View|Reshape|Neg|Add|Sub|Rsub)Backward\d*")
"""From the scalar that the loss is to a mean or a sum."""

_REDUCTION = re.compile(r"(Mean|Sum)Backward\d*")

_LOSS = re.compile(r"(MseLoss|SmoothL1Loss|HuberLoss)Backward\d*")
"""Functions that keep their target. Their operands were expanded to one shape before."""

_OF_ELEMENTS = re.compile(
    r"(Abs|Add|Sub|Rsub|Mul|Div|Neg|Pow|Square|Sqrt|Minimum|Maximum|Clamp|ClampMin|ClampMax|Relu|Where|Softplus|"
    r"LogSigmoid|Log1P|ToCopy|To|Clone|Alias|View|UnsafeView|Reshape|Squeeze)Backward\d*"
)
_ADDS = re.compile(r"(Unsqueeze|View|UnsafeView|Reshape|ReshapeAlias|Index|T|Transpose|Permute)Backward\d*")
"""Operations that may give a dimension of one element."""


class _Operand(NamedTuple):
    """What an operation was given: its node, and its shape before it was expanded."""

    node: Any
    shape: tuple[int, ...]


class LossBroadcasts:
    """Called with what each backward of the process began with, by the training thread."""

    def __init__(self, events: Events) -> None:
        self._events, self._left, self._is_known = events, MOST_BACKWARDS, False

    def look_again(self) -> None:
        """The loss is computed otherwise from the next backward on."""
        self._left = max(self._left, 1) if not self._is_known else 0

    def began(self, loss: Any) -> None:
        """A backward begins at `loss`."""
        if self._left and isinstance(loss, Tensor):
            self._left -= 1
            known = loss_broadcast(loss.grad_fn)
            if known is not None:
                self._left, self._is_known = 0, True
                self._events.add(known)


def loss_broadcast(root: Any) -> LossBroadcast | None:
    """Of the node of a graph that a loss is; None where nothing is broadcast so, or the loss is of pairs anyway."""
    known: LossBroadcast | None = None
    made: set[tuple[int, ...] | None] = set()
    """Shapes of what the loss is given by operations that are not on single elements."""
    waiting, seen = deque([(root, _OF_SCALARS)] if root is not None else []), {root}
    while waiting and len(seen) <= MOST_NODES:
        node, allowed = waiting.popleft()
        name = node_name(node)
        if _REDUCTION.fullmatch(name) and allowed is not _OF_ELEMENTS:
            following, largest = _REDUCTION, 0
        elif _LOSS.fullmatch(name) or (allowed is not _OF_SCALARS and _OF_ELEMENTS.fullmatch(name)):
            result = _result(node)
            operands = [_operand(*each) for each in node.next_functions if each[0] is not None]
            if result is None or None in operands:
                continue
            spread = [each for each in operands if each is not None and math.prod(each.shape) < math.prod(result)]
            if len(spread) > 1:
                return None
            if spread and len(operands) == 1 and (known is None or not known.other):
                known = _judged(node, spread[0], result) or known
            following, largest = _OF_ELEMENTS, math.prod(result)
        elif allowed is _OF_SCALARS and _OF_SCALARS.fullmatch(name):
            following, largest = _OF_SCALARS, 0
        else:
            if allowed is _OF_ELEMENTS and not name.startswith("ExpandBackward"):
                made.add(node_shape(node, 0))
            continue
        for child, output in node.next_functions:
            if child is None or child in seen:
                continue
            shape = node_shape(child, output)
            if not largest or (shape is not None and math.prod(shape) == largest):
                seen.add(child)
                waiting.append((child, following))
    return None if known is None or known.result in made else known


def _result(node: Any) -> tuple[int, ...] | None:
    """The shape before a reduction within the operation."""
    if not _LOSS.fullmatch(node_name(node)):
        return node_shape(node, 0)
    return next((node_shape(*each) for each in node.next_functions if each[0] is not None), None)


def _operand(node: Any, output: int) -> _Operand | None:
    while node_name(node).startswith("ExpandBackward") and node.next_functions[0][0] is not None:
        node, output = node.next_functions[0]
    shape = node_shape(node, output)
    return None if shape is None else _Operand(node, shape)


def _judged(node: Any, operand: _Operand, result: tuple[int, ...]) -> LossBroadcast | None:
    shape, name = operand.shape, node_name(node)
    is_column = len(shape) == len(result) > 1 and shape == (result[0], 1, *result[2:]) and result[0] == result[1]
    is_row = len(shape) + 1 == len(result) and shape == result[1:] and result[0] == result[1]
    if not (is_column or is_row) or result[0] < FEWEST:
        return None
    if _is_meant(operand):
        return None
    other = _other(node, name)
    if other not in (None, result[1:] if is_column else (result[0], 1, *result[2:])):
        return None
    return LossBroadcast(name.partition("Backward")[0], shape, other or (), result)


def _is_meant(operand: _Operand) -> bool:
    """Whether it is a parameter, or the loss has given it its dimension of one element."""
    node, shape = operand
    if node_name(node) == "AccumulateGrad":
        return True
    for _ in range(_DEPTH):
        before = [(child, output) for child, output in node.next_functions if child is not None]
        if len(before) != 1:
            return False
        earlier = node_shape(*before[0])
        if _ADDS.fullmatch(node_name(node)):
            return shape[1:2] == (1,) and (earlier is None or earlier[1:2] != (1,))
        if earlier != shape:
            return False
        node = before[0][0]
    return False


def _other(node: Any, name: str) -> tuple[int, ...] | None:
    """The shape of the operand without a gradient; None where the graph does not have it."""
    is_loss = _LOSS.fullmatch(name) is not None
    kept = "target" if is_loss else "self" if node.next_functions[0][0] is None else "other"
    if not is_loss and not name.startswith(("MulBackward", "DivBackward")):
        return None
    value = kept_value(node, kept)
    if not isinstance(value, Tensor):
        return None
    shape, strides = tuple(value.shape), value.stride()
    if is_loss:  # as it was before it was expanded
        shape = tuple(1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True))
        shape = shape[next((at for at, size in enumerate(shape) if size > 1), len(shape)) :]
    return shape
