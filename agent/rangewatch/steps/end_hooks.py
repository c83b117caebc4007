"""Where a step ends: hooks on the optimizers and on the loss scalers."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import nn

from rangewatch.core.guard import Guarded, logger
from rangewatch.hooks.compiled import CompiledCall
from rangewatch.hooks.optimizers.in_use import parameters_held
from rangewatch.steps.boundary import StepBoundary, is_inner
from rangewatch.steps.interface import StepRecorder
from rangewatch.steps.loss_scale import LossScaling, scalers_of
from rangewatch.steps.scalers import GRAD_SCALER
from rangewatch.steps.scalers.base import has_method
from rangewatch.steps.scalers.method_watch import Watch
from rangewatch.steps.scalers.wrapped import runs_hooks, stepping, wrapped_in


def add_step_ends(
    agent: StepRecorder, optimizers: list[Any], scaler: Any, undo: contextlib.ExitStack, ends: str = "all"
) -> tuple[StepBoundary, LossScaling]:
    """End the agent's step when the optimizers or the scalers say so; `undo` gets what takes the hooks away.

    `ends`: `Options.step_ends`.

    `scaler` None: those that the optimizers bring along. An optimizer inside one that settles its step itself, as
    DeepSpeed's do, has no say: it steps several times a step, or not at all.
    """
    matched = scalers_of(scaler, optimizers)
    settled = {id(each) for kind, one in matched if kind.method == "step" for each in wrapped_in(one)}
    outer = [each for each in optimizers if not settled & {id(inner) for inner in wrapped_in(each)}]
    known = frozenset(id(inner) for each in outer for inner in wrapped_in(each))
    boundary = StepBoundary(agent, len(outer), ends=ends)
    boundary.served_ids = [frozenset(map(id, wrapped_in(each))) for each in outer]
    boundary.take_turns({key: parameters_held(each) for key, each in enumerate(outer)})
    scaling = LossScaling(agent, matched, boundary, known, is_alone=not outer)
    undo.callback(scaling.remove)
    for position, optimizer in enumerate(outer):
        ended = CompiledCall(agent.guard, "step", partial(stepped, boundary, position))
        watch_step(optimizer, None, ended, undo)
    return boundary, scaling


def stepped(boundary: StepBoundary, key: int, *args: Any) -> None:
    """The optimizer of this key has stepped; `args` are those of torch's hook."""
    if not is_inner(args):
        boundary.optimizer_stepped(key)


def watch_step(optimizer: Any, before: Guarded | None, after: Guarded, undo: contextlib.ExitStack) -> None:
    """Call `before` and `after` around each step of `optimizer` or of what it wraps; `undo` gets what ends that.

    They are torch's own hooks where torch calls them. Any other object's `step` is watched, see `method_watch`.
    """
    target = stepping(optimizer)
    if not runs_hooks(target):
        undo.callback(Watch(target, "step", before or _nothing, after).remove)
        return
    if before is not None:
        undo.callback(target.register_step_pre_hook(before).remove)
    undo.callback(target.register_step_post_hook(after).remove)


def as_list(optimizer: Any) -> list[Any]:
    """One optimizer, several or none."""
    if optimizer is None:
        return []
    return list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]


def check_optimizers(optimizers: list[Any], model: nn.Module) -> None:
    """Raise `TypeError` for what cannot be the optimizers of `model`, and warn of one that has none of its parameters.

    That may be right: of float32 copies which the loop copies back. One that wraps another is not examined.
    """
    for optimizer in optimizers:
        _check_type(optimizer)
        if not has_parameters_of(optimizer, model):
            logger.warning(
                "rangewatch: the optimizer (%s) has none of the model's parameters; that is right where it updates "
                "master weights that you copy back yourself, and else nothing trains this model",
                type(optimizer).__name__,
            )


def has_parameters_of(optimizer: Any, model: nn.Module) -> bool:
    """Whether an optimizer has any parameter of `model`; of one that wraps another it is taken for granted."""
    own = {id(parameter) for parameter in model.parameters()}
    return not runs_hooks(optimizer) or not own.isdisjoint(parameters_held(optimizer))


def _check_type(optimizer: Any) -> None:
    name = type(optimizer).__name__
    if has_method(optimizer, "get_last_lr"):
        raise TypeError(f"rangewatch.attach: {name} is a learning rate scheduler: pass its optimizer")
    if GRAD_SCALER.fits(optimizer):
        raise TypeError(f"rangewatch.attach: {name} is a loss scaler: pass it as `scaler`")
    if stepping(optimizer) is None:
        raise TypeError(f"rangewatch.attach: {name} is not a torch.optim.Optimizer, and has no method step")


def _nothing(*args: Any) -> None:
    pass
