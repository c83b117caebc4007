"""Where the phases of a step begin and end: hooks on the model and the optimizers, and calls of torch's own.

Backward is `torch.autograd.backward`, which `Tensor.backward` calls. So it holds the loss's own part and DDP's wait for
its last buckets, and compiled graphs need no hook for it. A pipeline that calls the engine itself is not seen.

`PhaseCall` wraps a function of torch's once a process, while any clock wants to know when the process is in it. Data
wait is time that the training thread spends in a data loader: in the iterator's `__next__`, and where it starts
workers.

Accelerate's and Lightning's loaders have torch's iterator inside. An iterator of the user's own is not seen: then data
wait is unknown, and counts as `other`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import nn
from torch.utils.data import dataloader
from torch.utils.hooks import RemovableHandle

from rangewatch.core.guard import Guard, Guarded
from rangewatch.hooks.compiled import IS_SUPPORTED, CompiledCall, run_eagerly
from rangewatch.recording.phase_times import BACKWARD, DATA_WAIT, FORWARD, OPTIMIZER
from rangewatch.steps import phase_clock
from rangewatch.steps.end_hooks import watch_step
from rangewatch.steps.interface import StepRecorder
from rangewatch.steps.loss_scale import scalers_of
from rangewatch.steps.phase_clock import PhaseClock
from rangewatch.steps.scalers.base import has_method
from rangewatch.steps.scalers.method_watch import Watch


class _Listener(NamedTuple):
    clock: PhaseClock
    enter: Guarded
    leave: Guarded


class PhaseCall:
    """`name` of `owner`, a class or a module: each call of it is `phase` to the clocks that were added."""

    def __init__(self, owner: Any, name: str, phase: str) -> None:
        self._owner, self._name, self._phase = owner, name, phase
        self._own: Any = None
        self._wrapper: Any = None
        self._listeners: tuple[_Listener, ...] = ()
        """Replaced and never changed: another thread may be in the call."""

    def add(self, clock: PhaseClock, guard: Guard) -> Callable[[], None]:
        """Tell `clock` from here on; returns what ends that. A torch that has no such function is let be."""
        listener = _Listener(
            clock,
            Guarded(guard, self._phase, functools.partial(clock.enter, self._phase)),
            Guarded(guard, self._phase, functools.partial(clock.leave, self._phase)),
        )
        self._listeners = (*self._listeners, listener)
        self._install()
        return functools.partial(self._remove, clock)

    def _remove(self, clock: PhaseClock) -> None:
        self._listeners = tuple(each for each in self._listeners if each.clock is not clock)
        # What somebody else has wrapped on top of us stays, and calls ours, which then does nothing.
        if not self._listeners and vars(self._owner).get(self._name) is self._wrapper is not None:
            setattr(self._owner, self._name, self._own)
            self._wrapper = None

    def _install(self) -> None:
        present = vars(self._owner).get(self._name)
        is_gone = self._wrapper is None or present is self._own
        if present is not None and is_gone:
            self._own, self._wrapper = present, self._wrap(present)
            setattr(self._owner, self._name, self._wrapper)

    def _wrap(self, own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        def timed(*args: Any, **kwargs: Any) -> Any:
            listeners = self._listeners
            for each in listeners:
                each.enter()
            try:
                return own(*args, **kwargs)
            finally:
                for each in listeners:
                    each.leave()

        run_eagerly(timed)
        return timed


_ITERATOR = getattr(dataloader, "_BaseDataLoaderIter", None)  # private: another torch may have another

CALLS = (
    PhaseCall(dataloader.DataLoader, "__iter__", DATA_WAIT),
    *([] if _ITERATOR is None else [PhaseCall(_ITERATOR, "__next__", DATA_WAIT)]),
)
"""One object a process, as the classes are."""


_BACKWARD_CALL = PhaseCall(torch.autograd, "backward", BACKWARD)
_IN_GRAPH = {"input", "output", "grad_output"}

_is_compiling = torch.compiler.is_dynamo_compiling
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)
_is_grad_enabled = torch.is_grad_enabled


def add_phases(
    agent: StepRecorder, model: nn.Module, optimizers: list[Any], scaler: Any, undo: contextlib.ExitStack
) -> None:
    """Tell the agent's clock of each phase; `undo` gets what takes the hooks away. Call it before the step's ends."""
    clock, guard = agent.phases, agent.guard
    clock.device = phase_clock.of_device(next(model.parameters()).device)
    for call in (*CALLS, _BACKWARD_CALL):
        undo.callback(call.add(clock, guard))
    is_traced = not _IN_GRAPH.isdisjoint(agent.recording.kinds)
    forward = ForwardPhases(clock, guard, model, agent.in_forward, is_traced=is_traced)
    undo.callback(forward.remove)
    agent.observer.before_closing.append(forward.end_step)
    for optimizer in optimizers:
        watch_step(optimizer, *_around(CompiledCall, clock, guard), undo)
    for kind, each in scalers_of(scaler, optimizers):
        if kind.method != "step" and has_method(each, "step"):  # unscales, looks for Inf, and then steps the optimizer
            undo.callback(Watch(each, "step", *_around(Guarded, clock, guard)).remove)


def _around(hook: type[Guarded], clock: PhaseClock, guard: Guard) -> tuple[Guarded, Guarded]:
    def enter(*args: Any) -> None:
        clock.enter(OPTIMIZER)

    def leave(*args: Any) -> None:
        clock.leave(OPTIMIZER)

    return hook(guard, OPTIMIZER, enter), hook(guard, OPTIMIZER, leave)


class ForwardHook(CompiledCall):
    """Forward hook or pre-hook. Evaluation is no phase of a training step.

    In compiled code it is an operator in the graph, where `is_traced`: where there are others of ours already. Else it
    would be the one that a CUDA graph cannot hold.
    """

    __slots__ = ("_is_traced",)

    def __init__(self, guard: Guard, body: Any, *, is_traced: bool) -> None:
        super().__init__(guard, FORWARD, body)
        self._is_traced = IS_SUPPORTED and is_traced

    def __call__(self, *args: Any) -> None:
        if args and not args[0].training and not _is_grad_enabled():
            return
        if not _is_compiling():
            Guarded.__call__(self)
        elif self._is_traced and not _is_exporting():
            CompiledCall.__call__(self)


run_eagerly(ForwardHook.__call__)


class ForwardPhases:
    """The forwards of the model; where nobody calls the model itself, as with Lightning's, those of its children."""

    def __init__(
        self, clock: PhaseClock, guard: Guard, model: nn.Module, reported: list[Callable[[], None]], *, is_traced: bool
    ) -> None:
        self._clock, self._model, self._is_settled, self._reported = clock, ref(model), False, reported
        self._before = ForwardHook(guard, self._begin, is_traced=is_traced)
        self._after = ForwardHook(guard, partial(clock.leave, FORWARD), is_traced=is_traced)
        self._handles: list[RemovableHandle] = []
        self._hook(model)

    def _begin(self) -> None:
        self._clock.enter(FORWARD)
        for each in tuple(self._reported):
            each()

    def end_step(self) -> None:
        """After the first step it is known whether the model itself is called."""
        if self._is_settled:
            return
        self._is_settled = True
        model = self._model()
        if model is not None and FORWARD not in self._clock.seen:
            for child in _called_children(model):
                self._hook(child)

    def remove(self) -> None:
        """Take the hooks away."""
        self._is_settled = True
        for handle in self._handles:
            handle.remove()

    def _hook(self, module: nn.Module) -> None:
        if isinstance(module, torch.jit.ScriptModule) or getattr(module, "_compiled_call_impl", None) is not None:
            return  # the one runs no Python, the other would be compiled anew
        self._handles.append(module.register_forward_pre_hook(self._before, prepend=True))
        self._handles.append(module.register_forward_hook(self._after, always_call=True))


def _called_children(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if type(child).forward is nn.Module.forward:  # ModuleList and its like
            yield from _called_children(child)
        else:
            yield child
