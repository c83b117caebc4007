"""The hooks on a model's modules and parameters: puts them there, says what each records, and takes them away.

Modules that are added after attach are hooked when their parent gets them, and named anew when the step ends.

`ForwardHook` is what torch holds of ours on each module: one as forward hook and one as pre-hook, the same objects
everywhere, and the module's own part.

The compiler guards on a hook's identity and on its key. Were they each module's own, equal blocks could not share a
graph, and a model compiled block by block would meet torch's limit of recompilations at the eighth.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.utils.hooks import RemovableHandle

from rangewatch.core import limits
from rangewatch.core.guard import Guard, Guarded
from rangewatch.core.selection import Selection
from rangewatch.delivery.sender import THREAD as SENDER
from rangewatch.hooks.compiled import CompiledReads
from rangewatch.hooks.module_hook import OutputHook
from rangewatch.hooks.parameter_hooks import ParameterHooks
from rangewatch.hooks.routers import RouterHooks
from rangewatch.hooks.scales.model_scales import ModelScales
from rangewatch.hooks.sequence_axes import SequenceAxesReads
from rangewatch.hooks.watched_values import WatchedValues
from rangewatch.recording.eager import run_eagerly
from rangewatch.recording.level import Recording, TimedHook
from rangewatch.recording.observer import Observer, StepReader
from rangewatch.recording.tensor_names import clean_modules, is_container

KEY = -8642
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
    """The hook and the pre-hook. It changes nothing and returns None.

    Torch calls the one with `(module, arguments, output)`, the other with positional and keyword arguments.
    """

    __slots__ = ("_attribute",)

    def __init__(self, attribute: str) -> None:
        super().__init__(Guard(), "forward", lambda *args: None)
        self._attribute = attribute

    def __call__(self, *args: Any) -> None:
        module: nn.Module = args[0]
        reads: ModuleReads | None = getattr(module, self._attribute, None)
        if reads is None:
            return
        value = args[2] if self._attribute is _OUTPUT else args[1:]
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
_forward_hook, _forward_pre_hook = ForwardHook(_OUTPUT), ForwardHook(_INPUT)


def is_watched(module: nn.Module, but: Observer | None = None) -> bool:
    """Whether an active agent other than `but` reads it already, and not one that a fork has left behind."""
    reads = [module.__dict__.get(attribute) for attribute in (_OUTPUT, _INPUT)]
    observers = [each.observer for each in reads if isinstance(each, ModuleReads)]
    return any(observer.is_active and observer is not but for observer in observers)


def add(module: nn.Module, reads: ModuleReads) -> Callable[[], None]:
    """Read the outputs of `module`, which has one such hook; returns what undoes it."""
    module.__dict__[_OUTPUT] = reads
    module._forward_hooks[KEY] = _forward_hook
    return functools.partial(_remove, ref(module), _OUTPUT, reads)


def add_input(module: nn.Module, reads: ModuleReads) -> Callable[[], None]:
    """The same for its inputs."""
    module.__dict__[_INPUT] = reads
    module._forward_pre_hooks[KEY] = _forward_pre_hook
    module._forward_pre_hooks_with_kwargs[KEY] = True
    return functools.partial(_remove, ref(module), _INPUT, reads)


def _remove(reference: ref[nn.Module], attribute: str, reads: ModuleReads) -> None:
    module = reference()
    if module is None or module.__dict__.get(attribute) is not reads:
        return
    del module.__dict__[attribute]
    if attribute == _OUTPUT:
        module._forward_hooks.pop(KEY, None)
    else:
        module._forward_pre_hooks.pop(KEY, None)
        module._forward_pre_hooks_with_kwargs.pop(KEY, None)


_OUTPUTS = {"output", "grad_output"}
_IDLE: Any = (nn.modules.dropout._DropoutNd, nn.Identity)


class ModelHooks(StepReader):
    """`recording` says which kinds are recorded of a module or parameter; `record` is called when it says otherwise.
    `fqns` gets the clean name of each module. `routers` has been asked to find those of the model.

    A hook is added when it is wanted for the first time, and stays until `remove`: what is compiled has guards on it.
    """

    def __init__(
        self, observer: Observer, guard: Guard, model: nn.Module, selection: Selection, recording: Recording,
        fqns: WeakKeyDictionary[nn.Module, str], routers: RouterHooks, scales: ModelScales, axes: SequenceAxesReads,
    ) -> None:  # fmt: skip
        self._observer, self._guard, self._model, self._selection = observer, guard, ref(model), selection
        self._routers, self._scales, self._axes = routers, scales, axes
        self._recording, self.fqns = recording, fqns
        self._outputs: dict[nn.Module, OutputHook] | Any = WeakKeyDictionary()
        self._inputs: dict[nn.Module, OutputHook] | Any = WeakKeyDictionary()
        self._undo: list[Callable[[], None]] = []
        self._is_stale = False
        self._values = WatchedValues(observer, guard, fqns, recording)
        for fqn, module in clean_modules(model).items():
            self._add(fqn, module)
        self.parameters = ParameterHooks(observer, guard, model, selection, recording)
        self.structure = _structure(model)
        """Another number when modules or parameters are others, or elsewhere: as it was at the last refresh."""
        self._refresh_next_s = float("-inf")
        self._has_looked = False
        """Whether the open step has had its look at frozen parameters."""
        _watch_registrations(self)

    def record(self) -> None:
        """Ask anew what is wanted of each. Call it between steps."""
        for module, fqn in list(self.fqns.items()):
            self._record(fqn, module)
        self.parameters.record()
        self._values.record()

    def hook_trainable(self) -> None:
        """Hook the parameters that have become trainable."""
        self.parameters.hook_trainable()

    def before_backward(self) -> None:
        """A backward is about to begin, which parameters that were frozen until now may have a part in. Of a step the
        first counts, however many microbatches it has."""
        if not self._has_looked and self.parameters.has_few_frozen():
            self.parameters.hook_trainable()
        self._has_looked = True

    def end_step(self) -> None:
        """Between steps: modules may have been added, moved or taken away since the last."""
        self.before_backward()  # of a loop that does not call torch's backward
        self._has_looked = False
        if self._is_stale or time.monotonic() >= self._refresh_next_s:
            self.refresh()

    def refresh(self) -> None:
        """Hook and name anew what is another than at the last refresh."""
        model = self._model()
        if model is None:
            return
        began_s = time.monotonic()
        was, self.structure = self.structure, _structure(model)
        now_s, self._is_stale = time.monotonic(), False
        self._refresh_next_s = now_s + limits.REFRESH_FACTOR * (now_s - began_s)
        if self.structure == was:
            return
        modules = clean_modules(model)
        self._routers.find(modules)
        self._scales.find(modules)
        for fqn, module in modules.items():
            if module not in self.fqns:
                self._add(fqn, module)
            elif self.fqns[module] != fqn:
                self._rename(fqn, module)
        self.parameters.refresh(model)

    def remove(self) -> None:
        """Take all hooks away."""
        _forget_registrations(self)
        for undo in self._undo:
            undo()
        for hook in list(self._outputs.values()):
            for handle in hook.leaf_handles:
                handle.remove()
        self.parameters.remove()
        self._values.remove()

    def _add(self, fqn: str, module: nn.Module) -> None:
        self.fqns[module] = fqn
        if self._selection.has(fqn):
            self._record(fqn, module)

    def _record(self, fqn: str, module: nn.Module) -> None:
        kinds = self._recording.wanted(fqn) if self._selection.has(fqn) else ()
        if module not in self._outputs and not _OUTPUTS.isdisjoint(kinds) and self._can_hook(fqn, module):
            self._outputs[module] = hook = OutputHook(self._observer, self._guard, fqn, module)
            after = (self._routers.of(module), self._scales.of(module))
            hook.after = tuple(each for each in after if each is not None)
            self._axes.listen(fqn, module, hook)
            self._undo.append(add(module, self._reads(fqn, hook)))
            self._ask_whether_called(fqn, module, hook)
        if module not in self._inputs and "input" in kinds and self._can_hook(fqn, module):
            if module in self._outputs and self._outputs[module].is_compiled:
                self._observer.note_not_observed(fqn, "input: compiled before it was asked for")
            self._inputs[module] = hook = OutputHook(self._observer, self._guard, fqn, module, "input")
            self._undo.append(add_input(module, self._reads(fqn, hook)))
            if module not in self._outputs:
                self._ask_whether_called(fqn, module, hook)
        for hooks in (self._outputs, self._inputs):
            if module in hooks:
                hooks[module].record(kinds)

    def _can_hook(self, fqn: str, module: nn.Module) -> bool:
        if isinstance(module, torch.jit.ScriptModule):  # runs no Python hook of ours
            self._observer.note_not_observed(fqn, "a ScriptModule")
            return False
        if is_watched(module, but=self._observer):
            self._observer.note_not_observed(fqn, "watched for another attached model")
            return False
        return True

    def _ask_whether_called(self, fqn: str, module: nn.Module, hook: OutputHook) -> None:
        # ModuleList and its like are never called; a dropout often is there for its probability alone.
        if not is_container(module) and not isinstance(module, _IDLE):
            self._observer.uncalled[fqn] = hook

    def _reads(self, fqn: str, hook: OutputHook) -> ModuleReads:
        place, guard, cost = f"{hook.kind} of {fqn}", self._guard, self._observer.cost
        gradient = None
        if hook.kind == "output":
            gradient = TimedHook(guard, f"grad_output of {fqn}", hook.read_compiled_gradient, cost)
        compiled = CompiledReads(TimedHook(guard, place, hook.read_compiled, cost), gradient, self._recording)
        return ModuleReads(guard, place, hook.read, compiled, self._observer)

    def _rename(self, fqn: str, module: nn.Module) -> None:
        self.fqns[module] = fqn
        for hooks in (self._outputs, self._inputs):
            if module in hooks:
                hooks[module].rename(fqn)

    def module_added(self, parent: nn.Module, name: str, module: nn.Module | None) -> None:
        """Hook what is in `module` at once, by the name it has as far as can be seen."""
        if parent not in self.fqns or not self._observer.is_active:
            return
        self._is_stale = True
        if module is not None:
            for inner, each in clean_modules(module).items():
                if each not in self.fqns:
                    self._add(".".join(part for part in (self.fqns[parent], name, inner) if part), each)

    def parameter_added(self, parent: nn.Module) -> None:
        """It is looked at when the step ends."""
        self._is_stale = self._is_stale or parent in self.fqns


def _structure(model: nn.Module) -> int:
    """Another number when modules or parameters are others, or elsewhere."""
    modules = list(model.modules())
    return hash((*map(id, modules), *(id(each) for module in modules for each in module._parameters.values())))


_watching: tuple[ModelHooks, ...] = ()
"""Replaced and never changed: torch calls from any thread that builds a module."""
_registrations: list[RemovableHandle] = []


def _watch_registrations(hooks: ModelHooks) -> None:
    """Tell `hooks` of modules and parameters that any module of the process gets, by one hook of torch's for all."""
    global _watching
    _watching = (*_watching, hooks)
    if not _registrations:
        guard = Guard()
        added = Guarded(guard, "a module was added", _module_added)
        _registrations.append(nn_module.register_module_module_registration_hook(added))
        added = Guarded(guard, "a parameter was added", _parameter_added)
        _registrations.append(nn_module.register_module_parameter_registration_hook(added))


def _forget_registrations(hooks: ModelHooks) -> None:
    global _watching
    _watching = tuple(each for each in _watching if each is not hooks)
    # Not by the sender's thread: the user's may be going through torch's dictionary of hooks.
    if not _watching and threading.current_thread().name != SENDER:
        while _registrations:
            _registrations.pop().remove()


def _module_added(parent: nn.Module, name: str, module: nn.Module | None) -> None:
    with contextlib.suppress(TypeError):  # a module may be unhashable; ours is not
        for hooks in _watching:
            hooks.module_added(parent, name, module)


def _parameter_added(parent: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
    with contextlib.suppress(TypeError):
        for hooks in _watching:
            hooks.parameter_added(parent)
