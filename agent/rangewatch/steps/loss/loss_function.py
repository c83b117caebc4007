"""Event `loss_function`: that the loss is a cross entropy, and over how many classes, as its graph says.

What such a loss is where a model knows nothing follows from that: ln(classes). Shapes alone are read, of a mean over
all targets; another loss, or a sum of several, is none of these and says nothing.
"""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from rangewatch.recording.events import Events
from rangewatch.steps.loss.kept_values import kept_value
from rangewatch.wire.events import LossFunction

MOST_BACKWARDS = 4
"""The first backwards, of which one may be of this model's loss."""

_SCALED = re.compile(r"(Mul|Div|ToCopy|To|Squeeze|View|Reshape)Backward\d*")
"""Between the function and the scalar: a factor, such as the loss scale or the share of a microbatch, or a cast."""

_MEAN = 1
"""Of torch's reductions."""

_DEPTH = 6


class LossFunctions:
    """Called with what each backward of the process began with, by the training thread."""

    def __init__(self, events: Events) -> None:
        self._events, self._left = events, MOST_BACKWARDS

    def began(self, loss: Any) -> None:
        """A backward begins at `loss`."""
        if self._left and isinstance(loss, Tensor):
            self._left -= 1
            known = loss_function(loss.grad_fn)
            if known is not None:
                self._left = 0
                self._events.add(known)


def loss_node(node: Any) -> Any:
    """The node of a cross entropy that a loss is, but for a factor or a cast; None where it is none."""
    for _ in range(_DEPTH):
        if node is None:
            return None
        name = str(node.name())
        if name.startswith(("NllLoss", "BinaryCrossEntropyWithLogits")):
            return node
        if not _SCALED.fullmatch(name):
            return None
        before = [each for each, _ in node.next_functions if each is not None]
        node = before[0] if len(before) == 1 else None
    return None


def loss_function(root: Any) -> LossFunction | None:
    """Of the node of a graph that a loss is; None where it is of no such function, or not a mean."""
    node = loss_node(root)
    if node is None or node._saved_reduction != _MEAN:
        return None
    if not str(node.name()).startswith("NllLoss"):
        return LossFunction("bce", 2)
    scores = kept_value(node, "self")
    return LossFunction("nll", int(scores.shape[1])) if scores is not None and scores.dim() > 1 else None
