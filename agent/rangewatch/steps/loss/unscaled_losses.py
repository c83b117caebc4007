"""Event `unscaled_loss`: a backward of a loss that the loss scaler has not multiplied, though it divides its gradients.

Known by the graph: `scaler.scale(loss)` leaves a multiplication by the scaler's own tensor right below the loss. A sum
of losses is scaled where each of them is. What another code may have scaled is not known: custom functions, compiled
regions, factors on a device or of 8 and more, what activation checkpointing has packed away, a gradient that the
backward was given.
"""

from __future__ import annotations

import re
from enum import IntFlag
from functools import reduce
from operator import or_
from typing import Any

from torch import Tensor

from rangewatch.recording.events import Events
from rangewatch.steps.loss.graph_nodes import kept_value, node_name
from rangewatch.steps.loss_scale import LossScaling
from rangewatch.wire.events import UnscaledLoss

FIRST, EVERY = 16, 8
"""The first steps in which losses are looked at, and later each eighth: some 5 us a backward."""

LASTING = 4
"""Steps in a row that are reported: a loss may be left out once."""

MOST_EVENTS = 16

MOST_NODES = 24
"""Operations that are looked at of a backward, the nearest to the loss."""

LARGE, MOST_FACTORS = 8.0, 4_096
"""A number that large, or so many of them, may hold the scale: `scaler.get_scale()` gives a number, which is not to be
compared with what lies on a device."""

_OF_SCALARS = re.compile(
    r"(Mul|Div|ToCopy|To|Squeeze|View|Reshape|Neg|Add|Sub|Rsub|Sum|Mean|Stack|Clone|Alias)Backward\d+"
)
"""What may stand between the loss and its multiplication by the scale: each of these keeps a factor."""


class _Seen(IntFlag):
    UNKNOWN = 0
    SCALED = 1
    UNSCALED = 2
    PARTLY = 3
    """A sum of which some are scaled and some are not."""


class UnscaledLosses:
    """Called around each backward of the process, by the training thread."""

    def __init__(self, events: Events, scaling: LossScaling) -> None:
        self._events, self._scaling = events, scaling
        self._last = _Seen.UNKNOWN
        self._of_step: set[_Seen] = set()
        self._is_due = False
        self._steps = self._emitted = 0
        self._first = -1

    def began(self, loss: Any, gradient: Any, step: int) -> None:
        """A backward of `loss` begins in `step`."""
        self._last = _Seen.UNKNOWN
        self._is_due = step < FIRST or not step % EVERY
        if self._is_due and gradient is None and isinstance(loss, Tensor) and loss.numel() == 1:
            scale = self._scaling.only_scale()
            if scale is not None and not loss._backward_hooks:  # which may scale its gradient
                self._last = _look(loss.grad_fn, scale)

    def reached(self) -> None:
        """It has brought the model a gradient."""
        self._of_step.add(self._last)

    def end_step(self, step: int) -> None:
        """The open step is about to be closed."""
        seen, self._of_step = self._of_step, set()
        if not self._is_due or _Seen.UNKNOWN in seen or not seen or not self._scaling.serves_all():
            return
        was_reported = self._steps >= LASTING
        is_unscaled = bool(seen & {_Seen.UNSCALED, _Seen.PARTLY})
        self._first = self._first if self._steps else step
        self._steps = self._steps + 1 if is_unscaled else 0
        if was_reported != (self._steps >= LASTING) and self._emitted < MOST_EVENTS:
            self._emitted += 1
            others = bool(seen & {_Seen.SCALED, _Seen.PARTLY})
            self._events.add(UnscaledLoss(self._steps, self._first, others))


def _look(root: Any, scale: Tensor) -> _Seen:
    """Whether what a loss is made of was multiplied by `scale`, by the node of its graph."""
    return _Graph(scale).seen(root)


class _Graph:
    """Of one loss. `MOST_NODES` of its operations are looked at."""

    def __init__(self, scale: Tensor) -> None:
        self._scale, self._left = scale, MOST_NODES

    def seen(self, node: Any) -> _Seen:
        """What is known of the result of `node`."""
        self._left -= 1
        if node is None or self._left < 0:
            return _Seen.UNKNOWN
        name = node_name(node)
        children = [each for each, _ in node.next_functions if each is not None]
        if name.startswith("MulBackward"):
            return self._product(node, children)
        if name.startswith("DivBackward"):
            return self.seen(node.next_functions[0][0])  # what it is divided by is no loss
        if not _OF_SCALARS.fullmatch(name):
            is_unknown = not name[-1].isdigit()  # a function of somebody's own, or a compiled region, or a parameter
            return _Seen.UNKNOWN if is_unknown or self._is_scaled_below(children) else _Seen.UNSCALED
        parts = [self.seen(each) for each in children]
        return _Seen.UNKNOWN if _Seen.UNKNOWN in parts else reduce(or_, parts, _Seen.UNKNOWN)

    def _product(self, node: Any, factors: list[Any]) -> _Seen:
        if len(factors) > 1:
            parts = [self.seen(each) for each in factors]
            alike = set(parts) <= {_Seen.SCALED, _Seen.UNSCALED}
            return max(parts, key=lambda each: each is _Seen.SCALED) if alike else _Seen.UNKNOWN
        factor = _factor(node)
        if factor is not None and type(factor) is not Tensor:  # such as a DTensor, which has no memory of its own
            return _Seen.UNKNOWN
        if factor is not None and _is_scale(factor, self._scale):
            return _Seen.SCALED
        if factor is None or not factor.is_cpu or factor.numel() > MOST_FACTORS or bool((factor.abs() >= LARGE).any()):
            return _Seen.UNKNOWN
        return self.seen(factors[0]) if factors else _Seen.UNKNOWN

    def _is_scaled_below(self, nodes: list[Any]) -> bool:
        """Whether something was multiplied by the scale before another operation made this of it, as where what is not
        finite is taken out of a scaled loss."""
        for node in nodes:  # which grows
            if node_name(node).startswith("MulBackward"):
                factor = _factor(node)
                if type(factor) is Tensor and _is_scale(factor, self._scale):
                    return True
            if len(nodes) < MOST_NODES:
                nodes += [each for each, _ in node.next_functions if each is not None]
        return False


def _factor(node: Any) -> Tensor | None:
    """What has no gradient of the two that are multiplied; None where both have one, or it is packed away."""
    (first, _), (second, _) = node.next_functions
    value = None if first is not None and second is not None else kept_value(node, "self" if first is None else "other")
    return value if isinstance(value, Tensor) else None


def _is_scale(factor: Tensor, scale: Tensor) -> bool:
    if factor.numel() != 1:
        return False
    if factor.data_ptr() == scale.data_ptr() and factor.device == scale.device:
        return True
    return factor.is_cpu and scale.is_cpu and float(factor) == float(scale)
