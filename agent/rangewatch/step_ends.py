"""Where a step ends: hooks on the optimizers and on the loss scaler."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from torch import nn

from rangewatch.compiled import CompiledCall
from rangewatch.guard import Guarded
from rangewatch.loss_scale import ScalerWatch, is_enabled, state_before_update
from rangewatch.phases import StepBoundary
from rangewatch.worker import Agent


def add_step_ends(agent: Agent, optimizers: list[Any], scaler: Any, undo: contextlib.ExitStack) -> None:
    """End the agent's step when the optimizers or the scaler say so; `undo` gets what takes the hooks away."""
    guard = agent.guard
    # A scaler that is disabled skips nothing, and a loop may well leave it alone: its update ends no step.
    ends_step = scaler is not None and (is_enabled(scaler) or not optimizers)
    boundary = StepBoundary(agent.close_step, len(optimizers), has_scaler=ends_step)
    for position, optimizer in enumerate(optimizers):
        stepped = CompiledCall(guard, "step", lambda *_, position=position: boundary.optimizer_stepped(position))
        undo.callback(optimizer.register_step_post_hook(stepped).remove)
    if scaler is not None:
        before = Guarded(guard, "scaler", lambda: agent.record(state_before_update(scaler)))
        updated = Guarded(guard, "step", boundary.scaler_updated if ends_step else lambda: None)
        undo.callback(ScalerWatch(scaler, before, updated).remove)


def as_list(optimizer: Any) -> list[Any]:
    """One optimizer, several or none."""
    if optimizer is None:
        return []
    return list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]


def check_optimizers(optimizers: list[Any], model: nn.Module) -> None:
    """Raise `TypeError` or `ValueError` for what cannot be the optimizers of `model`."""
    own = {id(parameter) for parameter in model.parameters()}
    for optimizer in optimizers:
        if not hasattr(optimizer, "register_step_post_hook"):
            raise TypeError(f"rangewatch.attach: {type(optimizer).__name__} is not a torch.optim.Optimizer")
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if not any(id(parameter) in own for parameter in parameters):
            raise ValueError("rangewatch.attach: the optimizer has none of the model's parameters")
