"""Puts the hooks on a model's modules and parameters, and takes them away again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from rangewatch import forward_hook
from rangewatch.compiled import CompiledReads
from rangewatch.guard import Guard, Guarded
from rangewatch.hooks import OutputHook, ParameterHooks
from rangewatch.selection import Selection
from rangewatch.tensor_names import clean_modules
from rangewatch.watched_values import WatchedValues
from rangewatch.weights import WeightReads
from rangewatch.worker import Agent


def add_hooks(agent: Agent, model: nn.Module, selection: Selection, undo: contextlib.ExitStack) -> None:
    """Hook all of `model` that `selection` has; `undo` gets what takes the hooks away."""
    options, observer = agent.options, agent.observer
    for fqn, module in clean_modules(model).items():
        if selection.has(fqn):
            _add_module_hooks(agent, fqn, module, undo)
    values = WatchedValues(observer, agent.guard, model, options.kinds)
    undo.callback(values.remove)
    if "grad" in options.kinds:
        parameters = ParameterHooks(observer, agent.guard, model, selection)
        undo.callback(parameters.remove)
        observer.before_shipping = parameters.hook_trainable
    if "weight" in options.kinds:
        start, every = options.start_step, options.weight_every
        observer.before_closing = WeightReads(observer, model, selection, start_step=start, every=every).read_if_due


def _add_module_hooks(agent: Agent, fqn: str, module: nn.Module, undo: contextlib.ExitStack) -> None:
    kinds, guard, observer = agent.options.kinds, agent.guard, agent.observer
    if not {"input", "output", "grad_output"} & set(kinds):
        return
    if isinstance(module, torch.jit.ScriptModule):  # runs no Python hook of ours
        observer.note_not_observed(fqn, "a ScriptModule")
        return
    hook = OutputHook(observer, guard, fqn, module, kinds)
    if {"output", "grad_output"} & set(kinds):
        undo.callback(forward_hook.add(module, _reads(guard, fqn, hook, kinds)))
        undo.callback(_remove_all, hook.leaf_handles)
    if "input" in kinds:
        hook = OutputHook(observer, guard, fqn, module, kinds, "input")
        undo.callback(forward_hook.add_input(module, _reads(guard, fqn, hook, ("input",))))
    if type(module).forward is not nn.Module.forward:  # ModuleList and its like are never called
        observer.uncalled[fqn], observer.evaluated[fqn] = hook.has_run, hook.has_run_in_evaluation


def _reads(guard: Guard, fqn: str, hook: OutputHook, kinds: Iterable[str]) -> forward_hook.ModuleReads:
    place = f"{hook.kind} of {fqn}"
    gradient = Guarded(guard, f"grad_output of {fqn}", hook.read_compiled_gradient) if "grad_output" in kinds else None
    compiled = CompiledReads(Guarded(guard, place, hook.read_compiled), gradient)
    return forward_hook.ModuleReads(guard, place, hook.read, compiled)


def _remove_all(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
