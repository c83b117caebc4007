"""A loss scaler that `attach` was not given, as in `attach(model, optimizer)`: known by the optimizer that it steps."""

from __future__ import annotations

import contextlib
from typing import Any
from weakref import WeakSet, ref

import torch
from torch import nn
from torch.optim import Optimizer

from rangewatch.core.guard import Guarded
from rangewatch.steps.end_hooks import has_parameters_of
from rangewatch.steps.interface import StepRecorder
from rangewatch.steps.loss_scale import LossScaling
from rangewatch.steps.phases import add_scaler_phase
from rangewatch.steps.scalers import GRAD_SCALER, MatchedScaler
from rangewatch.steps.scalers.method_watch import Patch


class UnpassedScaler:
    """Meets each torch GradScaler that is not watched and whose `step` is called: one that steps an optimizer of the
    model is watched from then on as if it had been given.

    The step that it skips is over then too, and what overflowed in it is the scaler's business. Another that steps
    another optimizer is a second one, as each of a GAN's two may have; one that takes a place later, and steps what is
    served already, is known as that of a given one is.
    """

    def __init__(self, agent: StepRecorder, model: nn.Module, scaling: LossScaling, undo: contextlib.ExitStack) -> None:
        self._agent, self._model, self._scaling, self._undo = agent, ref(model), scaling, undo
        self._passed_over: WeakSet[Any] = WeakSet()
        """Optimizers of other models."""
        self._found = Guarded(agent.guard, "scaler", self._look_at)
        self._patch = Patch.of(torch.amp.GradScaler, "step")
        self._patch.finders.append(self)
        undo.callback(self.remove)

    def unwatched(self, target: Any, arguments: tuple[Any, ...]) -> None:
        """Its `step` is about to be called with an optimizer."""
        self._found(target, arguments)

    def remove(self) -> None:
        """Meet no more of them."""
        if self in self._patch.finders:
            self._patch.finders.remove(self)
            self._patch.restore_if_unused()

    def _look_at(self, scaler: Any, arguments: tuple[Any, ...]) -> None:
        model, optimizer = self._model(), next((each for each in arguments if isinstance(each, Optimizer)), None)
        if model is None or optimizer is None or optimizer in self._passed_over or not GRAD_SCALER.is_enabled(scaler):
            return
        if not has_parameters_of(optimizer, model):
            self._passed_over.add(optimizer)
        elif not self._scaling.serves(optimizer):
            self._scaling.found(MatchedScaler(GRAD_SCALER, scaler), optimizer)
            add_scaler_phase(self._agent, scaler, self._undo)
