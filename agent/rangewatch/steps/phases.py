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
from typing import Any, NamedTuple, Protocol
from weakref import ref

import torch
from torch import Tensor, nn
from torch.utils.data import dataloader
from torch.utils.hooks import RemovableHandle

from rangewatch.core.guard import Guard, Guarded
from rangewatch.core.patched_function import PatchedFunction
from rangewatch.hooks.compiled import IS_SUPPORTED, CompiledCall
from rangewatch.hooks.model_hooks import KEY as READS_KEY
from rangewatch.recording.eager import hidden_from_modes, is_traced_now, run_eagerly
from rangewatch.recording.observer import ForwardListener, StepReader
from rangewatch.recording.phase_times import BACKWARD, DATA_WAIT, FORWARD, OPTIMIZER
from rangewatch.recording.tensor_names import is_container, leaves
from rangewatch.steps import phase_clock
from rangewatch.steps.end_hooks import watch_step
from rangewatch.steps.epoch_orders import EpochOrders
from rangewatch.steps.evaluation.passes import Passes
from rangewatch.steps.evaluation.places import EvaluationPlaces
from rangewatch.steps.evaluation.training_mode import TrainingMode
from rangewatch.steps.interface import StepRecorder
from rangewatch.steps.loss_scale import scalers_of
from rangewatch.steps.phase_clock import PhaseClock
from rangewatch.steps.scalers.base import has_method
from rangewatch.steps.scalers.method_watch import Watch


class CallListener(Protocol):
    """Wants to know what the function was called with."""

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """It is called."""

    def after(self, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any) -> None:
        """It has returned this."""


class _Listener(NamedTuple):
    clock: PhaseClock
    enter: Guarded
    leave: Guarded
    before: Guarded | None = None
    after: Guarded | None = None


class PhaseCall:
    """`name` of `owner`, a class or a module: each call of it is `phase` to the clocks that were added."""

    def __init__(self, owner: Any, name: str, phase: str) -> None:
        self._function, self._phase = PatchedFunction(owner, name), phase
        self._listeners: tuple[_Listener, ...] = ()
        """Replaced and never changed: another thread may be in the call."""

    def add(self, clock: PhaseClock, guard: Guard, calls: CallListener | None = None) -> Callable[[], None]:
        """Report phases to `clock` and `calls` from here on; returns what ends that. A torch without such a function is
        let be.

        `calls` hears of calls by the thread that made it, the training thread.
        """
        listener = _Listener(
            clock,
            Guarded(guard, self._phase, functools.partial(clock.enter, self._phase)),
            Guarded(guard, self._phase, functools.partial(clock.leave, self._phase)),
            None if calls is None else Guarded(guard, self._phase, calls.before),
            None if calls is None else Guarded(guard, self._phase, calls.after),
        )
        self._listeners = (*self._listeners, listener)
        self._function.install(self._wrap)
        return functools.partial(self._remove, clock)

    def _remove(self, clock: PhaseClock) -> None:
        self._listeners = tuple(each for each in self._listeners if each.clock is not clock)
        if not self._listeners:
            self._function.remove()

    def _wrap(self, own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        def timed(*args: Any, **kwargs: Any) -> Any:
            listeners = self._listeners
            for each in listeners:
                each.enter()
                if each.before is not None:
                    each.before(args, kwargs)
            try:
                result = own(*args, **kwargs)
                for each in listeners:
                    if each.after is not None:
                        each.after(args, kwargs, result)
                return result
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


BACKWARD_CALL = PhaseCall(torch.autograd, "backward", BACKWARD)
_IN_GRAPH = {"input", "output", "grad_output"}

INPUT_ELEMENTS = "input_elements"
"""Series: elements of all tensors that the model's forwards of a step were given, masks of booleans apart; none of a
model that is compiled."""

_NoTorchFunction = torch._C.DisableTorchFunctionSubclass
_is_compiling = torch.compiler.is_dynamo_compiling
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)
_is_grad_enabled = torch.is_grad_enabled


class _Loads:
    """Calls of a loader or its iterator: who hears of them gets which it was, and what it has returned."""

    def __init__(self, *listeners: Callable[[Any, Any], None]) -> None:
        self._listeners = listeners

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """It is called."""

    def after(self, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any) -> None:
        """It has returned this."""
        for each in self._listeners:
            each(args[0], returned)


def add_phases(
    agent: StepRecorder, model: nn.Module, optimizers: list[Any], scaler: Any, undo: contextlib.ExitStack
) -> ForwardPhases:
    """Report each phase to the agent's clock; `undo` gets what takes the hooks away.

    Call it before the step's ends, and `begin_step` of what it returns when the hooks that read are there.
    """
    clock, guard = agent.phases, agent.guard
    clock.device = phase_clock.of_device(next(model.parameters()).device)
    orders = EpochOrders(agent)
    every = (orders.began,), (orders.given, agent.nonfinite.loaded.given)
    for call, listeners in zip(CALLS, every, strict=False):  # another torch may have the first alone
        undo.callback(call.add(clock, guard, _Loads(*listeners)))
    is_traced = not _IN_GRAPH.isdisjoint(agent.recording.kinds)
    forward = ForwardPhases(agent, model, agent.in_forward, is_traced=is_traced)
    undo.callback(forward.remove)
    agent.observer.step_readers.append(forward)
    for optimizer in optimizers:
        add_optimizer_phase(agent, optimizer, undo)
    for kind, each in scalers_of(scaler, optimizers):
        if kind.method != "step" and has_method(each, "step"):
            add_scaler_phase(agent, each, undo)
    return forward


def add_backward(agent: StepRecorder, calls: CallListener, undo: contextlib.ExitStack) -> None:
    """The same of backwards, of which `calls` hears too."""
    undo.callback(BACKWARD_CALL.add(agent.phases, agent.guard, calls))


def add_scaler_phase(agent: StepRecorder, scaler: Any, undo: contextlib.ExitStack) -> None:
    """The same of a scaler's `step`, which unscales, looks for Inf, and then steps the optimizer."""
    undo.callback(Watch(scaler, "step", *_around(Guarded, agent.phases, agent.guard)).remove)


def add_optimizer_phase(agent: StepRecorder, optimizer: Any, undo: contextlib.ExitStack) -> None:
    """The same for one optimizer."""
    watch_step(optimizer, *_around(CompiledCall, agent.phases, agent.guard), undo)


def _around(hook: type[Guarded], clock: PhaseClock, guard: Guard) -> tuple[Guarded, Guarded]:
    def enter(*args: Any) -> None:
        clock.enter(OPTIMIZER)

    def leave(*args: Any) -> None:
        clock.leave(OPTIMIZER)

    return hook(guard, OPTIMIZER, enter), hook(guard, OPTIMIZER, leave)


class ForwardHook(Guarded):
    """Forward hook or pre-hook of the model. `body` gets the module, whether it is in `train()`, whether gradients are
    on, and the arguments of the hook.

    In compiled code it is an operator in the graph, where `is_traced`: where there are others of ours already. Else it
    would be the one that a CUDA graph cannot hold. Without gradients in `eval()` nothing is read there, nor called.
    """

    __slots__ = ("_compiled", "_is_traced")

    def __init__(self, guard: Guard, body: Callable[..., None], *, is_traced: bool) -> None:
        super().__init__(guard, FORWARD, body)
        self._is_traced = IS_SUPPORTED and is_traced
        self._compiled = {
            (is_training, has_grad): CompiledCall(guard, FORWARD, partial(body, None, is_training, has_grad))
            for is_training in (True, False)
            for has_grad in (True, False)
        }

    def __call__(self, *args: Any) -> None:
        is_training, has_grad = args[0].training, _is_grad_enabled()
        if not _is_compiling():
            super().__call__(args[0], is_training, has_grad, args)
        elif self._is_traced and (is_training or has_grad) and not _is_exporting():
            self._compiled[is_training, has_grad]()


run_eagerly(ForwardHook.__call__)


class ForwardPhases(StepReader):
    """The forwards of the model; where nobody calls the model itself, as with Lightning's, those of its children."""

    def __init__(
        self, agent: StepRecorder, model: nn.Module, listeners: list[ForwardListener], *, is_traced: bool
    ) -> None:
        self._clock, self._model, self._is_settled, self._listeners = agent.phases, ref(model), False, listeners
        self._agent, self._of_inputs = agent, agent.of_inputs
        self._passes = Passes(
            agent.observer,
            agent.phases,
            agent.values,
            TrainingMode(model, agent.events, agent.values),
            EvaluationPlaces(agent.events),
        )
        self._before = ForwardHook(agent.guard, self._begin, is_traced=is_traced)
        self._after = ForwardHook(agent.guard, self._end, is_traced=is_traced)
        self._handles: list[RemovableHandle] = []
        self._ends: list[tuple[ref[nn.Module], int]] = []
        """Modules whose forward hook is ours, and its key there."""
        self._has_been_called = False
        self._elements = 0
        """Of what the forwards of the open step were given."""
        self._hook(model)

    def _begin(self, module: nn.Module | None, is_training: bool, has_grad: bool, *hook: Any) -> None:
        if not self._agent.observer.is_active:
            return
        is_outermost = self._passes.begin(module, is_training=is_training, has_grad=has_grad)
        if is_outermost and not is_traced_now():  # what is read would be a part of the trace
            for each in tuple(self._listeners):
                each.forward_begins()
            if hook:
                with (
                    _NoTorchFunction(),
                    hidden_from_modes(leaves(hook[0][1:])),
                ):  # a subclass may make anything of what is asked of it
                    self._given(hook[0][1:])
        if not self._agent.observer.is_evaluating:
            self._has_been_called = True
            self._clock.enter(FORWARD)

    def _given(self, values: Any) -> None:
        tensors = (each for each in leaves(values) if isinstance(each, Tensor))
        self._elements += sum(each.numel() for each in tensors if each.dtype is not torch.bool)
        for listener in tuple(self._of_inputs):
            listener.inputs_given(values)

    def _end(self, module: nn.Module | None, is_training: bool, has_grad: bool, *hook: Any) -> None:
        if not self._agent.observer.is_active:
            return
        if not self._agent.observer.is_evaluating:
            self._clock.leave(FORWARD)
        self._passes.end(hook[0][2] if hook and len(hook[0]) > 2 else None)

    def begin_step(self, step: int) -> None:
        """Other levels may have brought hooks that read what modules return: the pass ends after them."""
        for reference, key in self._ends:
            module = reference()
            if module is not None:
                ordered: Any = module._forward_hooks
                hooks = list(ordered)
                if READS_KEY in hooks and key in hooks and hooks.index(key) < hooks.index(READS_KEY):
                    ordered.move_to_end(key)

    def end_step(self) -> None:
        """After the first step it is known whether the model itself is called."""
        self._passes.end_step(self._agent.step)
        elements, self._elements = self._elements, 0
        if elements:
            self._agent.values.record(INPUT_ELEMENTS, self._agent.step, elements)
        if self._is_settled:
            return
        self._is_settled = True
        model = self._model()
        if model is not None and not self._has_been_called:
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
        self._handles.append(module.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True))
        after = module.register_forward_hook(self._after, always_call=True)
        self._handles.append(after)
        self._ends.append((ref(module), after.id))


def _called_children(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if is_container(child):  # ModuleList and its like
            yield from _called_children(child)
        else:
            yield child
