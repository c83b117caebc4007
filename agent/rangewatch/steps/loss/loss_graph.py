"""Event `loss_graph`: which operation between the modules and the loss made a loss, or a gradient, NaN or Inf.

What a loss function computes is no module's output. But each operation keeps for its backward what that needs, operands
or its result, until the backward has used it: so right before the backward of a loss that is not finite they are read,
once in a spell of such steps. Of a finite loss whose gradient is not, the values are gone when that is seen; which
operations there are is known still. Only on a CPU: an accelerator would have to be waited for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from rangewatch.core import limits
from rangewatch.recording.events import Events
from rangewatch.recording.nonfinite.nonfinite_context import NonfiniteContext, TensorReader
from rangewatch.recording.observer import Observer
from rangewatch.steps.loss.graph_nodes import kept_value, node_name
from rangewatch.wire.events import LossGraph, SavedValue, TensorDetails

MOST_NODES = 4_096
"""Operations of a graph that are looked at: once in a spell, some microseconds each."""

MOST_VALUES = 4
"""Of each kind that are sent."""

NEAR, MOST_OPS = 24, 48
"""Operations in a row from a gradient towards the loss, and of them all, that are named."""

_PLACES = {"self": 0, "other": 1, "target": 1, "tensor1": 1, "tensor2": 2}
"""Which operand it is, by the name under which it is kept; others, such as weights of a loss, are given."""

_PLACES_OF = {
    ("Convolution", "input"): 0, ("Convolution", "weight"): 1, ("Mm", "mat2"): 1, ("Bmm", "mat2"): 1,
    ("Addmm", "mat1"): 1, ("Addmm", "mat2"): 2, ("Baddbmm", "batch1"): 1, ("Baddbmm", "batch2"): 2,
    ("NativeLayerNorm", "input"): 0, ("NativeBatchNorm", "input"): 0, ("NativeGroupNorm", "input"): 0,
}  # fmt: skip
"""The same of single operations."""

_OF_ROWS = ("Logsumexp",)
"""Operations whose result is -Inf of a row of -Inf alone: that is no mask."""

_OF_DIFFERENCES = ("Pow", "Abs", "Norm", "LinalgVectorNorm")
"""Operations that nobody gives a mask: -Inf is no mask there."""

_SUMS = ("Add", "Sub")
"""Operations that keep nothing, and whose result is never NaN where they are given finite numbers."""

_WIDE, _FAR = ("float32", "float64"), 1e30
"""Dtypes in which a sum of numbers that are not as large is never Inf."""

_FINITE = frozenset((
    "Abs", "Add", "Addmm", "Alias", "AsStrided", "Atan", "Baddbmm", "Bmm", "Cat", "Clamp", "ClampMax", "ClampMin",
    "Clone", "Convolution", "Cos", "Div", "Elu", "Exp", "Expand", "Flip", "Gather", "Gelu", "Hardtanh", "Index",
    "IndexSelect", "LeakyRelu", "LogSigmoid", "LogSoftmax", "MaskedFill", "Mm", "Mul", "Mv", "NativeBatchNorm",
    "NativeDropout", "NativeGroupNorm", "NativeLayerNorm", "Neg", "Permute", "Relu", "ReshapeAlias", "Select",
    "Sigmoid", "Silu", "Sin", "Slice", "Softmax", "Softplus", "Split", "Sqrt", "Squeeze", "Stack", "Sub", "Sum",
    "T", "Tanh", "ToCopy", "Transpose", "Unbind", "UnsafeView", "Unsqueeze", "View", "Where",
))  # fmt: skip
"""Operations whose result is never NaN of finite numbers, or of which what they keep shows it. An arc cosine, a power
or a mean of nothing may be, and keeps none of it."""

MOST_BEHIND = 256
"""Operations between a sum and the layers behind it that are looked at."""

_FROM_ZERO = {("Div", "other"), ("Reciprocal", "self"), ("Rsqrt", "self"), ("Remainder", "other"), ("Fmod", "other")}
_FROM_NEGATIVE = {("Log", "self"), ("Log2", "self"), ("Log10", "self"), ("Xlogy", "other")}
"""Operations that are not finite where the operand of this name is 0, or is not above it."""

_NUMBER = re.compile(r"Backward\d*$")


class LossGraphReads:
    """Called around each backward of the process, by the training thread."""

    def __init__(self, observer: Observer, events: Events, nonfinite: NonfiniteContext) -> None:
        self._observer, self._events, self._nonfinite = observer, events, nonfinite
        self._was_bad, self._count = False, 0

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """`torch.autograd.backward` is called with these."""
        self._nonfinite.gradient = None
        loss = _loss(args, kwargs)
        if loss is None or self._observer.is_on_device(loss) or not self._observer.is_active:
            return
        was_bad, self._was_bad = self._was_bad, not math.isfinite(loss.item())
        if self._was_bad and not was_bad and self._count < limits.NONFINITE_EVENTS:
            self._count += 1
            bad, risky = _of_values(loss.grad_fn)
            loaded = self._nonfinite.loaded.known((each for _, each in bad), TensorReader()) if bad else None
            if bad or risky:
                self._events.add(LossGraph(bad=tuple(each for each, _ in bad), risky=risky, loaded=loaded))

    def after(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """It has returned."""
        gradient = self._nonfinite.gradient
        if gradient is None:
            return
        self._nonfinite.gradient = None
        loss = _loss(args, kwargs)
        if gradient[1] is not None and loss is not None and not self._was_bad:
            self._events.add(LossGraph(gradient_of=gradient[0], ops=tuple(_between(loss.grad_fn, gradient[1]))))


def _loss(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    tensors = kwargs.get("tensors", args[0] if args else None)
    if isinstance(tensors, (list, tuple)) and len(tensors) == 1:
        tensors = tensors[0]
    if type(tensors) is not Tensor or tensors.numel() != 1 or not tensors.is_floating_point():
        return None
    return tensors


def _children(node: Any) -> list[Any]:
    return [child for child, _ in node.next_functions if child is not None]


def _nodes(root: Any) -> list[Any]:
    """Those of a graph, each after all that it is computed from; the nearest to the loss first where there are more
    than are looked at."""
    found, waiting = {root: None}, [root]
    for node in waiting:
        for child in _children(node):
            if child not in found and len(found) < MOST_NODES:
                found[child] = None
                waiting.append(child)
    order: list[Any] = []
    done: set[Any] = set()
    stack = [(root, False)]
    while stack:
        node, is_left = stack.pop()
        if is_left:
            order.append(node)
        elif node not in done:
            done.add(node)
            stack.append((node, True))
            stack += [(child, False) for child in _children(node) if child in found and child not in done]
    return order


def _of_values(root: Any) -> tuple[list[tuple[SavedValue, Tensor]], tuple[SavedValue, ...]]:
    """What was not finite first, and what was given to operations that are not finite there."""
    reader, tainted = TensorReader(), set()
    bad: list[tuple[Any, SavedValue, Tensor]] = []
    risky: list[SavedValue] = []
    for node in _nodes(root) if root is not None else ():
        values = list(_saved(node, reader))
        is_bad = [each for each in values if each[0].value.is_bad and not _is_mask(each[0])]
        if any(child in tainted for child in _children(node)):
            tainted.add(node)
        elif is_bad:
            tainted.add(node)
            bad += [(node, *each) for each in is_bad]
        risky += [each for each, _ in values if _is_risky(each)]
    # Of an operation that is not finite of what it was given a sum behind it may be NaN as well.
    known = [(saved if risky else _given_to_sum(node, saved), tensor) for node, saved, tensor in bad]
    known.sort(key=lambda each: _order(each[0]))
    return known[:MOST_VALUES], tuple(risky[:MOST_VALUES])


def _given_to_sum(node: Any, saved: SavedValue) -> SavedValue:
    """The operand from outside of a sum or a difference, where what `node` keeps is the result of one and holds NaN or
    Inf: the same elements of it are, where the other operand is the model's and passed nothing that makes such."""
    place, value = _place(saved.op, saved.name), saved.value
    is_overflow = value.inf_count and (value.dtype not in _WIDE or value.amax > _FAR)
    if saved.is_given or saved.name == "result" or place is None or is_overflow:
        return saved
    made = node.next_functions[place][0]
    is_of_two = _op(made) in _SUMS and any(child is None for child, _ in made.next_functions)
    if is_of_two and _is_finite(_children(made)):
        return SavedValue(_op(made), "other", True, saved.value)
    return saved


def _is_finite(nodes: list[Any]) -> bool:
    """Whether nothing from the layers of the model up to these can have made NaN."""
    seen = set(nodes)
    for count, node in enumerate(nodes):
        if count >= MOST_BEHIND or (_op(node) not in _FINITE and node.next_functions):
            return False
        if not _has_parameters(node):
            following = [each for each in _children(node) if each not in seen]
            seen.update(following)
            nodes += following
    return True


def _place(op: str, name: str) -> int | None:
    return _PLACES_OF.get((op, name), _PLACES.get(name))


def _is_mask(saved: SavedValue) -> bool:
    is_of_row = saved.op in _OF_ROWS and saved.name == "result"
    return saved.value.is_mask and not is_of_row and saved.op not in _OF_DIFFERENCES


def _order(saved: SavedValue) -> tuple[bool, bool, int]:
    return saved.name != "result", not saved.is_given, saved.value.nan_count + saved.value.inf_count


def _saved(node: Any, reader: TensorReader) -> Iterator[tuple[SavedValue, Tensor]]:
    op, following = _op(node), node.next_functions
    for attribute in _attributes(node):
        name = attribute.removeprefix("_saved_")
        tensor = kept_value(node, name)
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            continue
        details = reader.whole(name, tensor)
        if details is not None:
            place = _place(op, name)
            is_given = name != "result" and (place is None or place >= len(following) or following[place][0] is None)
            yield SavedValue(op, name, is_given, details), tensor


_known: dict[str, tuple[str, ...]] = {}


def _attributes(node: Any) -> tuple[str, ...]:
    """What its class keeps: the same for all of a name."""
    name = node_name(node)
    if name not in _known:
        if len(_known) > limits.ACCOUNT_NAMES:
            _known.clear()
        _known[name] = tuple(each for each in dir(node) if each.startswith("_saved_"))
    return _known[name]


def _op(node: Any) -> str:
    """Such as "Div" of DivBackward0; the user's own functions have no number, and keep their whole name."""
    name = node_name(node)
    return (_NUMBER.sub("", name) if name[-1:].isdigit() else name)[: limits.NAME_CHARACTERS]


def _is_risky(saved: SavedValue) -> bool:
    value: TensorDetails = saved.value
    zeros = value.zero_count if isinstance(value.zero_count, int) else 0
    negative = value.negative_count if isinstance(value.negative_count, int) else 0
    key = saved.op, saved.name
    return (key in _FROM_ZERO and zeros > 0) or (key in _FROM_NEGATIVE and zeros + negative > 0)


def _between(root: Any, start: Any) -> Iterable[str]:
    """Names of the operations from `start` towards the loss, the nearest first, each once."""
    above: dict[Any, list[Any]] = {}
    nodes = _nodes(root) if root is not None else []
    for node in nodes:
        for child in _children(node):
            above.setdefault(child, []).append(node)
    names: dict[str, None] = {}
    level, seen = above.get(start, []), {start}
    for _ in range(NEAR):
        following: list[Any] = []
        for node in level:
            if node in seen or _has_parameters(node):
                continue
            seen.add(node)
            if not _is_by_constant(node):
                names[_op(node)] = None
            following += above.get(node, [])
        level = following
    return list(names)[:MOST_OPS]


def _has_parameters(node: Any) -> bool:
    names = [node_name(child) for child in _children(node)]
    return any(name == "AccumulateGrad" or name.startswith("TBackward") for name in names)


def _is_by_constant(node: Any) -> bool:
    """Whether it divides by what has no gradient, as by a number."""
    following = node.next_functions
    return _op(node) == "Div" and len(following) > 1 and following[1][0] is None
