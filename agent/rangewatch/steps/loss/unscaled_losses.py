"""Event `unscaled_loss`: a backward of a loss that the loss scaler has not multiplied, though it divides its gradients.

Known by the graph: `scaler.scale(loss)` leaves a multiplication by the scaler's own tensor right below the loss. A sum
of losses is scaled where each of them is. What another code may have scaled is not known: custom functions, compiled
regions, factors on a device, a gradient that the backward was given.
"""

from __future__ import annotations

import re
from enum import IntFlag
from typing import Any

from torch import Tensor

from rangewatch.recording.events import Events
from rangewatch.steps.loss_scale import LossScaling
from rangewatch.wire.events import UnscaledLoss

FIRST, EVERY = 16, 8
"""The first steps in which losses are looked at, and later each eighth: some 5 us a backward."""

LASTING = 4
"""Steps in a row that are reported: a loss may be left out once."""

MOST_EVENTS = 16

MOST_NODES = 24
"""Operations that are looked at of a backward, the nearest to the loss."""

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
            if scale is not None:
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
    found = _Seen.UNKNOWN
    waiting, count = [root], 0
    while waiting:
        node, count = waiting.pop(), count + 1
        if node is None or count > MOST_NODES:
            return _Seen.UNKNOWN
        name = str(node.name())
        factor = _factor(node) if name.startswith("MulBackward") else None
        if factor is not None and type(factor) is not Tensor:  # such as a DTensor, which has no memory of its own
            return _Seen.UNKNOWN
        if factor is not None and _is_scale(factor, scale):
            found |= _Seen.SCALED
        elif factor is not None and not factor.is_cpu:
            return _Seen.UNKNOWN
        elif not _OF_SCALARS.fullmatch(name):
            if not name[-1].isdigit():  # a function of somebody's own, or a compiled region, or a parameter
                return _Seen.UNKNOWN
            found |= _Seen.UNSCALED
        else:
            waiting += [each for each, _ in node.next_functions if each is not None]
    return found


def _factor(node: Any) -> Tensor | None:
    """The number that something is multiplied by; None where it is no number, or has a gradient itself."""
    (first, _), (second, _) = node.next_functions
    if first is not None and second is not None:
        return None
    value = node._saved_other if second is None else node._saved_self
    return value if isinstance(value, Tensor) and value.numel() == 1 else None


def _is_scale(factor: Tensor, scale: Tensor) -> bool:
    if factor.data_ptr() == scale.data_ptr() and factor.device == scale.device:
        return True
    return factor.is_cpu and scale.is_cpu and float(factor) == float(scale)
