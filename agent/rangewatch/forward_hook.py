"""What torch holds of ours on each module: one forward hook and one pre-hook, the same objects everywhere, and the
module's own part.

The compiler guards on a hook's identity and on its key. Were they each module's own, equal blocks could not share a
graph, and a model compiled block by block would meet torch's limit of recompilations at the eighth.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
from torch import nn

from rangewatch.compiled import CompiledReads, run_eagerly
from rangewatch.cost import TimedHook
from rangewatch.guard import Guard, Guarded
from rangewatch.observer import Observer

_KEY = -8642
"""Our key among a module's hooks. Torch counts its own up from 0."""

_OUTPUT, _INPUT = "_range_reads", "_range_input_reads"
"""The attributes by which a module has its own part; not ones for `state_dict`, and inert in a copy or a pickle."""

_is_compiling = torch.compiler.is_dynamo_compiling
_is_grad_enabled = torch.is_grad_enabled


class ModuleReads(TimedHook):
    """One module's part: what is called in eager mode, `(module, value)`, and what the compiler traces."""

    __slots__ = ("compiled", "observer")

    def __init__(
        self, guard: Guard, place: str, body: Callable[..., Any], compiled: CompiledReads, observer: Observer
    ) -> None:
        super().__init__(guard, place, body, observer.cost)
        self.compiled, self.observer = compiled, observer


class ForwardHook(Guarded):
    """The hook. It changes nothing and returns None."""

    __slots__ = ()

    def __call__(self, *args: Any) -> None:
        module, _, output = args
        _pass_on(module, getattr(module, _OUTPUT, None), output)


class ForwardPreHook(Guarded):
    """The pre-hook, which sees positional and keyword arguments."""

    __slots__ = ()

    def __call__(self, *args: Any) -> None:
        module, *arguments = args
        _pass_on(module, getattr(module, _INPUT, None), arguments)


def _pass_on(module: nn.Module, reads: ModuleReads | None, value: Any) -> None:
    if reads is None:
        return
    if _is_compiling():
        if module.training or _is_grad_enabled():
            reads.compiled.trace(value)
        return
    if reads.cost.is_on:
        reads(module, value)
        return
    try:
        reads.body(module, value)
    except Exception as error:  # noqa: BLE001 - the guard's own clause again: calling it costs 0.2 us a module
        reads.fault(error)


run_eagerly(ForwardHook.__call__)
run_eagerly(ForwardPreHook.__call__)
_forward_hook = ForwardHook(Guard(), "forward", lambda *args: None)
_forward_pre_hook = ForwardPreHook(Guard(), "forward", lambda *args: None)


def is_watched(module: nn.Module, but: Observer | None = None) -> bool:
    """Whether an active agent other than `but` reads it already, and not one that a fork has left behind."""
    reads = [module.__dict__.get(attribute) for attribute in (_OUTPUT, _INPUT)]
    found = [each.observer for each in reads if isinstance(each, ModuleReads)]
    return any(observer.is_active and observer is not but for observer in found)


def add(module: nn.Module, reads: ModuleReads) -> Callable[[], None]:
    """Read the outputs of `module`, which has one such hook; returns what undoes it."""
    module.__dict__[_OUTPUT] = reads
    module._forward_hooks[_KEY] = _forward_hook
    return functools.partial(_remove, ref(module), _OUTPUT, reads)


def add_input(module: nn.Module, reads: ModuleReads) -> Callable[[], None]:
    """The same for its inputs."""
    module.__dict__[_INPUT] = reads
    module._forward_pre_hooks[_KEY] = _forward_pre_hook
    module._forward_pre_hooks_with_kwargs[_KEY] = True
    return functools.partial(_remove, ref(module), _INPUT, reads)


def _remove(reference: ref[nn.Module], attribute: str, reads: ModuleReads) -> None:
    module = reference()
    if module is None or module.__dict__.get(attribute) is not reads:
        return
    del module.__dict__[attribute]
    if attribute == _OUTPUT:
        module._forward_hooks.pop(_KEY, None)
    else:
        module._forward_pre_hooks.pop(_KEY, None)
        module._forward_pre_hooks_with_kwargs.pop(_KEY, None)
