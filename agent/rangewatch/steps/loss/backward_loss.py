"""The loss of a loop that logs none: the scalar that `backward` is called on, without its loss scale.

Of several backwards in a step (microbatches, the parts of a loss) it is the sum, which is what the gradients are of.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rangewatch.hooks.sequence_axes import SequenceAxesReads
from rangewatch.recording.observer import StepReader, is_being_captured, local_part
from rangewatch.recording.rows.mirror import TENSOR
from rangewatch.steps.interface import StepRecorder
from rangewatch.steps.loss.loss_broadcast import LossBroadcasts
from rangewatch.steps.loss.loss_changes import LossChanges
from rangewatch.steps.loss.loss_function import LossFunctions
from rangewatch.steps.loss.loss_graph import LossGraphReads
from rangewatch.steps.loss.loss_rows import loss_rows
from rangewatch.steps.loss.loss_targets import LossTargets
from rangewatch.steps.loss.unregistered import UnregisteredParameters
from rangewatch.steps.loss.unscaled_losses import UnscaledLosses
from rangewatch.steps.loss_scale import LossScaling

_NoTorchFunction = torch._C.DisableTorchFunctionSubclass


class BackwardLoss(StepReader):
    """Called around each backward of the process; those that bring this model no gradient are passed over.

    A step's value is recorded when the next one ends: only then is it known that the loop has logged no loss for it.
    """

    def __init__(
        self, agent: StepRecorder, scaling: LossScaling, graph: LossGraphReads, unregistered: UnregisteredParameters,
        axes: SequenceAxesReads,
    ) -> None:  # fmt: skip
        self._agent, self._scaling, self._graph = agent, scaling, graph
        self._unregistered, self._axes = unregistered, axes
        self._functions, self._broadcasts = LossFunctions(agent.events), LossBroadcasts(agent.events)
        self._changes = LossChanges(agent.events)
        self._targets = LossTargets(agent.values, agent.observer)
        self._unscaled = UnscaledLosses(agent.events, scaling)
        self._last_read, self._began, self._ended_at = -1, -1, -1
        self._sum: Tensor | float | None = None
        self._held: tuple[int, Tensor | float] | None = None
        self._has_recorded = False
        self._counted: int | None = None
        """`id` of what the backward that returned last began with, until another begins."""

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """`torch.autograd.backward` is called with these."""
        cells = self._agent.observer.host.cells
        if cells[TENSOR] == self._ended_at:  # two backwards in a row, of parts of one loss, end at the same tensor
            cells[TENSOR] = -1
        self._last_read, self._began = cells[TENSOR], self._agent.step
        self._counted = None
        self._agent.before_backward()
        self._graph.before(args, kwargs)
        if not self._agent.observer.is_active:
            return
        with _NoTorchFunction():  # a subclass may make anything of what is asked of it
            began_at = kwargs.get("tensors", args[0] if args else None)
            gradient = kwargs.get("grad_tensors", args[1] if len(args) > 1 else None)
            self._unscaled.began(began_at, gradient, self._began)
            self._functions.began(began_at, self._began)
            if self._changes.begins(began_at):
                self._broadcasts.look_again()
            self._broadcasts.began(began_at)
            self._targets.began(began_at, self._began)
            self._unregistered.began(began_at, self._began)
            if self._axes.is_due and isinstance(began_at, Tensor):
                self._axes.compared(loss_rows(began_at.grad_fn))

    def after(self, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any = None) -> None:
        """It has returned. The value is read where it is, and no device is waited for."""
        self._graph.after(args, kwargs)
        if self._agent.observer.is_active and self._has_reached():
            self._unscaled.reached()
            self._changes.reached(self._began)
        with _NoTorchFunction():
            self._read(args, kwargs)
        self._ended_at = self._agent.observer.host.cells[TENSOR]

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        loss = _scalar(args, kwargs)
        if loss is None or not self._agent.observer.is_active or not (self._is_wanted() and self._has_reached()):
            return
        given: Any = kwargs.get("tensors", args[0] if args else None)
        key = id(given if isinstance(given, Tensor) else given[0])
        if key == self._counted:  # torch calls itself a second time with a subclass, inside of the first
            return
        self._counted = key
        scale = self._scaling.scale()
        if self._agent.observer.is_on_device(loss):
            value: Tensor | float = loss.double() if loss.device.type != "mps" else loss.float()
        else:
            value = float(loss)
            scale = float(scale) if isinstance(scale, Tensor) and scale.is_cpu else scale
        value = value / scale
        if self._agent.step != self._began:  # an optimizer that steps in its backward has ended the step
            self.flush()
            self._held = self._began, value
        else:
            self._sum = value if self._sum is None else self._sum + value

    def end_step(self) -> None:
        """The open step is about to be closed."""
        self._unscaled.end_step(self._agent.step)
        self.flush()
        value, self._sum = self._sum, None
        if value is not None:
            self._held = self._agent.step, value

    def flush(self) -> None:
        """Record the value of the last step, unless the loop has logged one."""
        held, self._held = self._held, None
        if held is not None and self._is_wanted():
            self._has_recorded = True
            self._agent.values.record("loss", *held)

    def _is_wanted(self) -> bool:
        logged = self._agent.values.logged_losses
        return "loss" not in logged if self._has_recorded else not logged

    def _has_reached(self) -> bool:
        """Whether a gradient was read; not known where nothing but gradients is."""
        is_mixed = self._agent.recording.has("output")
        return not is_mixed or self._agent.observer.host.cells[TENSOR] != self._last_read


def _scalar(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The one floating element that the backward began with, with a gradient of 1."""
    given = [*args[:2], *[None] * (2 - len(args))]
    tensors, gradients = kwargs.get("tensors", given[0]), kwargs.get("grad_tensors", given[1])
    if isinstance(tensors, (list, tuple)) and len(tensors) == 1:
        tensors = tensors[0]
    if isinstance(gradients, (list, tuple)) and all(each is None for each in gradients):
        gradients = None
    if not isinstance(tensors, Tensor) or gradients is not None or kwargs.get("inputs") is not None:
        return None
    local = local_part(tensors.detach())
    return local if local.numel() == 1 and local.is_floating_point() and not is_being_captured(local) else None
