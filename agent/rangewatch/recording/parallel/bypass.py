"""Event `wrapper_bypassed`: the module inside a DistributedDataParallel is called itself, as by `model.module(x)`.

DistributedDataParallel prepares the reduction in its own forward. Where that is not called gradients stay those of each
rank, and nothing fails. Known by what torch says inside of such a forward; it reads no tensor.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any
from weakref import WeakSet, ref

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rangewatch.core import limits
from rangewatch.core.guard import Guard, Guarded
from rangewatch.recording.events import Events
from rangewatch.recording.observer import Observer, StepReader
from rangewatch.recording.parallel.placements import Layout
from rangewatch.wire.events import WrapperBypassed

LASTING = 8
"""Steps in a row that are reported: single ones may be meant, as of a second loss of the same batch."""

MOST_EVENTS = 32

_is_compiling = torch.compiler.is_dynamo_compiling
_graph_task_id = torch._C._current_graph_task_id


class WrapperBypass(StepReader):
    """Of the wrappers of one model. Called by the training thread."""

    def __init__(
        self, layout: Layout, observer: Observer, events: Events, guard: Guard, undo: contextlib.ExitStack
    ) -> None:
        self._layout, self._observer, self._events, self._guard, self._undo = layout, observer, events, guard, undo
        self._hooked: WeakSet[DistributedDataParallel] = WeakSet()
        self._is_through = False
        self._past = ""
        """The class of what was called past its wrapper in the open step."""
        self._steps = self._emitted = 0

    def begin_step(self, step: int) -> None:
        """`step` is open: a model may have been wrapped since the last one."""
        if len(self._layout.wrappers) > len(self._hooked):
            for wrapper in set(self._layout.wrappers) - set(self._hooked):
                self._hooked.add(wrapper)
                if getattr(wrapper.module, "_compiled_call_impl", None) is None:  # it would be compiled anew
                    hook = BypassHook(self._guard, "call past a wrapper", partial(self._called, ref(wrapper)))
                    self._undo.callback(wrapper.module.register_forward_pre_hook(hook).remove)

    def end_step(self) -> None:
        """The open step is about to be closed."""
        is_through, past = self._is_through, self._past
        self._is_through, self._past = False, ""
        if is_through:
            was_reported, self._steps = self._steps >= LASTING, 0
            if was_reported:
                self._emit("")
        elif past:
            self._steps += 1
            if self._steps == LASTING:
                self._emit(past)

    def _called(self, wrapper: Any, module: nn.Module, *args: Any) -> None:
        if not self._observer.is_active or not torch.is_grad_enabled() or _graph_task_id() != -1:
            return  # no gradient comes of it, or it is a checkpoint's second time
        if getattr(DistributedDataParallel, "_active_ddp_module", None) is None:
            self._past = type(module).__name__
        else:
            self._is_through = True

    def _emit(self, name: str) -> None:
        if self._emitted < MOST_EVENTS:
            self._emitted += 1
            self._events.add(WrapperBypassed(self._steps, name[: limits.NAME_CHARACTERS]))


class BypassHook(Guarded):
    """What is compiled has been through its wrapper, or is not known."""

    __slots__ = ()

    def __call__(self, *args: Any) -> None:
        if not _is_compiling():
            super().__call__(*args)
