"""Event `loss_function`: that the loss is a cross entropy, over how many classes, and of what, as its graph says.

What such a loss is where a model knows nothing follows from that: ln(classes). Shapes alone are read, of a mean over
all targets; another loss, or a sum of several, is none of these and says nothing.
"""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor

from rangewatch.recording.events import Events
from rangewatch.recording.input_scale import sampled
from rangewatch.steps.loss.graph_nodes import kept_value, node_name
from rangewatch.wire.events import LossFunction

MOST_BACKWARDS = 4
"""The first backwards, of which one may be of this model's loss."""

NEGATED = 64
"""Backwards in a row that must begin at minus a cross entropy for it to be the loss: those of an attack on the model
are so before each that trains it, and one times an advantage has the sign of that."""

_SCALED = re.compile(r"(Mul|Div|ToCopy|To|Squeeze|View|Reshape)Backward\d*")
"""Between the function and the scalar: a factor, such as the loss scale or the share of a microbatch, or a cast."""

_MEAN = 1
"""Of torch's reductions."""

_DEPTH = 6


class LossFunctions:
    """Called with what each backward of the process began with, by the training thread."""

    def __init__(self, events: Events) -> None:
        self._events, self._left = events, MOST_BACKWARDS
        self._negated: tuple[int, LossFunction] | None = None
        """The first one that was, and its step, until it is known that all are."""

    def began(self, loss: Any, step: int) -> None:
        """A backward of `step` begins at `loss`."""
        if not self._left or not isinstance(loss, Tensor):
            return
        self._left -= 1
        known = loss_function(loss.grad_fn)
        if self._negated is not None:
            self._go_on(known)
        elif known is not None and known.is_negated:
            self._left, self._negated = NEGATED - 1, (step, known)
        elif known is not None:
            self._left = 0
            self._events.add(known)

    def _go_on(self, known: LossFunction | None) -> None:
        """The next backward after one of minus a cross entropy."""
        if self._negated is not None and known is not None and known.is_negated:
            if not self._left:
                step, first = self._negated
                self._events.add(first, step=step)
            return
        self._left = 0
        if known is not None:
            self._events.add(known)


def loss_node(node: Any) -> Any:
    """The node of a cross entropy that a loss is, but for a factor or a cast; None where it is none."""
    node = _behind(node, _SCALED)
    return node if node is not None and node_name(node).startswith(_CROSS) else None


_CROSS = ("NllLoss", "BinaryCrossEntropyWithLogits")


def _behind(node: Any, passed: re.Pattern[str]) -> Any:
    """The first node that is none of these, of which each has one operand, or what is there after `_DEPTH`; None where
    one has several operands."""
    for _ in range(_DEPTH):
        if node is None or not passed.fullmatch(node_name(node)):
            return node
        before = [each for each, _ in node.next_functions if each is not None]
        node = before[0] if len(before) == 1 else None
    return node


def loss_function(root: Any) -> LossFunction | None:
    """Of the node of a graph that a loss is; None where it is of no such function, or not a mean."""
    is_negated, root = _without_sign(root)
    node = loss_node(root)
    if node is None:
        return _of_squares(root) or _of_probabilities(root) or _of_ctc(root)
    given, is_mean = _given(node), node._saved_reduction == _MEAN
    if not node_name(node).startswith("NllLoss"):
        return LossFunction("bce", 2, given, is_negated) if is_mean else None
    scores = kept_value(node, "self")
    if not is_mean or scores is None or scores.dim() < 2:
        return None
    return LossFunction("nll", int(scores.shape[1]), given, is_negated)


def _of_squares(root: Any) -> LossFunction | None:
    """Of a mean of squared differences from targets that lie in host memory."""
    node = _behind(root, _SCALED)
    if node is None or not _SQUARES.fullmatch(node_name(node)):
        return None
    target = kept_value(node, "target")
    if not isinstance(target, Tensor) or not target.is_cpu or target.requires_grad or not target.is_floating_point():
        return None
    part = sampled(target.detach())
    if part is None:
        return None
    rms = float(torch.linalg.vector_norm(part.double())) / math.sqrt(part.numel())
    return LossFunction("mse", target_rms=rms) if math.isfinite(rms) else None


def _of_probabilities(root: Any) -> LossFunction | None:
    """Of `kl_div`, which takes log-probabilities, where it is given probabilities. Its graph is that of the sum of
    target * (log(target) - input), of which the target has no gradient."""
    node = _behind(root, _SUMMED)
    if _name(node) != "Sub" or len(node.next_functions) < 2 or node.next_functions[0][0] is not None:
        return None
    product = node.next_functions[1][0]
    operands = [] if product is None else [each for each, _ in product.next_functions]
    if _name(product) != "Mul" or len(operands) != 2 or operands.count(None) != 1:
        return None
    made = next(each for each in operands if each is not None)
    made = _before(made) if _PASSED.fullmatch(node_name(made)) else made
    return LossFunction("kl", given="Probabilities") if _name(made) in ("Softmax", "Sigmoid") else None


def _of_ctc(root: Any) -> LossFunction | None:
    """Of `ctc_loss`, which takes log-probabilities, where it is given probabilities or a layer's own output."""
    node = _behind(root, _SUMMED)
    if _name(node) not in ("CtcLoss", "CudnnCtcLoss"):
        return None
    made = _name(_before(node))
    given = "Probabilities" if made in ("Softmax", "Sigmoid") else "Raw" if made in _LINEAR else ""
    return LossFunction("ctc", given=given) if given else None


_SUMMED = re.compile(r"(Sum|Mean|Mul|Div|ToCopy|To|Squeeze|View|Reshape)Backward\d*")

_SQUARES = re.compile(r"(MseLoss|SmoothL1Loss|HuberLoss)Backward\d*")


def _without_sign(root: Any) -> tuple[bool, Any]:
    """Whether the loss is minus something, but for factors and casts, and that; else itself."""
    node = root
    for _ in range(_DEPTH):
        if node is None or not (_SCALED.fullmatch(name := node_name(node)) or name.startswith("NegBackward")):
            break
        before = [each for each, _ in node.next_functions if each is not None]
        if len(before) != 1:
            break
        if name.startswith("NegBackward") or (name.startswith("MulBackward") and _is_negative(node)):
            return True, before[0]
        node = before[0]
    return False, root


def _is_negative(node: Any) -> bool:
    """Whether it multiplies by a number below 0 of the host."""
    factor = kept_value(node, "other")
    is_read = isinstance(factor, Tensor) and factor.is_cpu and factor.numel() == 1 and factor.dtype in _NUMBERS
    return is_read and float(factor.detach().numpy().reshape(-1)[0]) < 0


_NUMBERS = (torch.float32, torch.float64)
"""What a number of Python's is, once a loss is multiplied by it."""


_PASSED = re.compile(
    r"(ToCopy|To|Squeeze|Unsqueeze|View|Reshape|ReshapeAlias|UnsafeView|Transpose|Permute|T|Clone|Alias|Contiguous)"
    r"Backward\d*"
)
"""Between an operation and the loss that takes its result: the same values."""

_NUMBER = re.compile(r"Backward\d*$")

_LINEAR = ("Addmm", "Mm", "Bmm", "Baddbmm", "Convolution", "Linear")
"""What a layer's raw outputs come from."""


def _given(node: Any) -> str:
    """The operation that made what a cross entropy takes, of an nll without a log_softmax as "Raw" where it is a layer
    and by its name else; "" where nothing is odd about it, or it is not known."""
    of = _before(node)
    if node_name(node).startswith("NllLoss"):
        if _name(of) != "LogSoftmax":
            return "Raw" if _name(of) in _LINEAR else "Probabilities" if _name(of) in ("Softmax", "Sigmoid") else ""
        of = _before(of)
    return _name(of) if _name(of) in ("Softmax", "Sigmoid", "Relu") else ""


def _before(node: Any) -> Any:
    """The operation before, views and casts passed over."""
    for _ in range(_DEPTH):
        node = node.next_functions[0][0] if node is not None and node.next_functions else None
        if node is None or not _PASSED.fullmatch(node_name(node)):
            return node
    return None


def _name(node: Any) -> str:
    return "" if node is None else _NUMBER.sub("", node_name(node))
