"""`detect_overflow`: any value inside a forward, watched as if a module had returned it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from rangewatch.core.guard import Guard, Guarded
from rangewatch.hooks.compiled import CompiledReads, leaves_unread, trace_value
from rangewatch.hooks.module_hook import OutputHook
from rangewatch.recording.eager import run_eagerly
from rangewatch.recording.level import LOW_PRECISION, OF_FORWARD, Recording
from rangewatch.recording.observer import Observer

_is_compiling = torch.compiler.is_dynamo_compiling


def detect_overflow(tensor: Tensor, name: str) -> None:
    """Watch `tensor` where this stands in a module's forward: `detect_overflow(x, "after layer_norm")`.

    It is recorded as an output (and its gradient as one) under the clean name of the module whose `forward` calls, if
    that can be seen, and `name`; give a place a name that stays the same from step to step. It returns nothing, never
    waits for a device, and does nothing where no model is attached.
    """
    if _is_compiling():
        if torch.is_grad_enabled() and _is_read_compiled(tensor.dtype in LOW_PRECISION):
            trace_value(tensor, _compiled_number(name))
    elif _live:
        _read(tensor, name, sys._getframe(1).f_locals.get("self"))


class WatchedValues:
    """Those of one attached model."""

    def __init__(
        self, observer: Observer, guard: Guard, fqns: WeakKeyDictionary[nn.Module, str], recording: Recording
    ) -> None:
        self.guard = guard
        self._observer, self.fqns, self.recording = observer, fqns, recording
        self._hooks: dict[str, OutputHook] = {}
        _live.add(self)

    def hook(self, name: str) -> OutputHook:
        """What reads the value of this whole name."""
        hook = self._hooks.get(name)
        if hook is None:
            hook = self._hooks[name] = OutputHook(self._observer, self.guard, name, _unknown)
            hook.record(self.recording.wanted(name))
        return hook

    def record(self) -> None:
        """Ask anew what is wanted of each."""
        for name, hook in self._hooks.items():
            hook.record(self.recording.wanted(name))

    def remove(self) -> None:
        """Watch nothing more."""
        _live.discard(self)
        for hook in self._hooks.values():
            for handle in hook.leaf_handles:
                handle.remove()


class Value(nn.Module):
    """Stands for the module of a value."""


_unknown = Value()
_guard = Guard()
_live: WeakSet[WatchedValues] = WeakSet()
_compiled: dict[str, CompiledReads] = {}


def _read(tensor: Tensor, name: str, principal: Any) -> None:
    for values in list(_live):
        fqn = values.fqns.get(principal) if isinstance(principal, nn.Module) else None
        if fqn is not None or len(_live) == 1:
            module = principal if fqn is not None else _unknown
            read = functools.partial(values.hook(_full_name(fqn, name)).read, module, tensor)
            values.guard.run(f"detect_overflow {name}", read)


def _full_name(fqn: str | None, name: str) -> str:
    return f"{fqn} {name}" if fqn else name


def _compiled_number(name: str) -> int:
    """The number of this value in compiled graphs, where no caller can be seen. Called while the compiler traces."""
    if name not in _compiled:
        run = Guarded(_guard, name, functools.partial(_run_compiled, name, OutputHook.read_compiled))
        run_gradient = Guarded(_guard, name, functools.partial(_run_compiled, name, OutputHook.read_compiled_gradient))
        _compiled[name] = CompiledReads(run, run_gradient)
    return _compiled[name].number


# What torch.compiler.assume_constant_result does, whose use imports a second's worth of compiler.
_compiled_number._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _is_read_compiled(is_low_precision: bool) -> bool:
    recordings = [each.recording for each in list(_live)]
    if len(recordings) != 1:
        return not is_low_precision  # nobody reads it now
    recording = recordings[0]
    is_asked = recording.reads_low_precision and not OF_FORWARD.isdisjoint(recording.kinds)
    return is_asked or not leaves_unread(recording, is_low_precision)


_is_read_compiled._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _run_compiled(name: str, read: Callable[[OutputHook, int, Tensor], None], index: int, tensor: Tensor) -> None:
    if len(_live) == 1:
        for values in list(_live):
            read(values.hook(name), index, tensor)


run_eagerly(detect_overflow)
