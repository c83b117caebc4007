"""The hooks on a model's modules and parameters: puts them there, says what each records, and takes them away.

Modules that are added after attach are hooked when their parent gets them, and named anew when the step ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.nn.modules import module as nn_module

from rangewatch import forward_hook
from rangewatch.compiled import CompiledReads
from rangewatch.cost import TimedHook
from rangewatch.guard import Guard, Guarded
from rangewatch.hooks import OutputHook
from rangewatch.observer import Observer
from rangewatch.parameter_hooks import ParameterHooks
from rangewatch.selection import Selection
from rangewatch.tensor_names import clean_modules
from rangewatch.watched_values import WatchedValues

Wanted = Callable[[str], Collection[str]]
_OUTPUTS = {"output", "grad_output"}


class ModelHooks:
    """`wanted(fqn)` says which kinds are recorded of a module or parameter; `record` is called when it says otherwise.

    A hook is added when it is wanted for the first time, and stays until `remove`: what is compiled has guards on it.
    """

    def __init__(self, observer: Observer, guard: Guard, model: nn.Module, selection: Selection, wanted: Wanted):
        self._observer, self._guard, self._model, self._selection = observer, guard, ref(model), selection
        self._wanted = wanted
        self._outputs: dict[nn.Module, OutputHook] | Any = WeakKeyDictionary()
        self._inputs: dict[nn.Module, OutputHook] | Any = WeakKeyDictionary()
        self._undo: list[Callable[[], None]] = []
        self.fqns: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._is_stale = False
        self._values = WatchedValues(observer, guard, self.fqns, wanted)
        for fqn, module in clean_modules(model).items():
            self._add(fqn, module)
        self._parameters = ParameterHooks(observer, guard, model, selection, wanted)
        observer.before_shipping = self._parameters.hook_trainable
        added = Guarded(guard, "a module was added", self._module_added)
        self._undo.append(nn_module.register_module_module_registration_hook(added).remove)
        added = Guarded(guard, "a parameter was added", self._parameter_added)
        self._undo.append(nn_module.register_module_parameter_registration_hook(added).remove)

    def record(self) -> None:
        """Ask anew what is wanted of each. Call it between steps."""
        for module, fqn in list(self.fqns.items()):
            self._record(fqn, module)
        self._parameters.record(self._wanted)
        self._values.record()

    def end_step(self) -> None:
        """Between steps: modules may have been added, moved or taken away since the last."""
        model = self._model()
        if not self._is_stale or model is None:
            return
        self._is_stale = False
        for fqn, module in clean_modules(model).items():
            if module not in self.fqns:
                self._add(fqn, module)
            elif self.fqns[module] != fqn:
                self._rename(fqn, module)
        self._parameters.look(model)

    def remove(self) -> None:
        """Take all hooks away."""
        for undo in self._undo:
            undo()
        for hook in list(self._outputs.values()):
            for handle in hook.leaf_handles:
                handle.remove()
        self._parameters.remove()
        self._values.remove()

    def _add(self, fqn: str, module: nn.Module) -> None:
        self.fqns[module] = fqn
        if self._selection.has(fqn):
            self._record(fqn, module)

    def _record(self, fqn: str, module: nn.Module) -> None:
        kinds = self._wanted(fqn) if self._selection.has(fqn) else ()
        if module not in self._outputs and not _OUTPUTS.isdisjoint(kinds) and self._can_hook(fqn, module):
            self._outputs[module] = hook = OutputHook(self._observer, self._guard, fqn, module)
            self._undo.append(forward_hook.add(module, self._reads(fqn, hook)))
            self._ask_whether_called(fqn, module, hook)
        if module not in self._inputs and "input" in kinds and self._can_hook(fqn, module):
            self._inputs[module] = hook = OutputHook(self._observer, self._guard, fqn, module, "input")
            self._undo.append(forward_hook.add_input(module, self._reads(fqn, hook)))
            if module not in self._outputs:
                self._ask_whether_called(fqn, module, hook)
        for hooks in (self._outputs, self._inputs):
            if module in hooks:
                hooks[module].record(kinds)

    def _can_hook(self, fqn: str, module: nn.Module) -> bool:
        is_script = isinstance(module, torch.jit.ScriptModule)
        if is_script:
            self._observer.note_not_observed(fqn, "a ScriptModule")  # runs no Python hook of ours
        return not is_script

    def _ask_whether_called(self, fqn: str, module: nn.Module, hook: OutputHook) -> None:
        if type(module).forward is not nn.Module.forward:  # ModuleList and its like are never called
            self._observer.uncalled[fqn], self._observer.evaluated[fqn] = hook.has_run, hook.has_run_in_evaluation

    def _reads(self, fqn: str, hook: OutputHook) -> forward_hook.ModuleReads:
        place, guard, cost = f"{hook.kind} of {fqn}", self._guard, self._observer.cost
        gradient = None
        if hook.kind == "output" and "grad_output" in self._wanted(fqn):
            gradient = TimedHook(guard, f"grad_output of {fqn}", hook.read_compiled_gradient, cost)
        compiled = CompiledReads(TimedHook(guard, place, hook.read_compiled, cost), gradient)
        return forward_hook.ModuleReads(guard, place, hook.read, compiled, cost)

    def _rename(self, fqn: str, module: nn.Module) -> None:
        self.fqns[module] = fqn
        for hooks in (self._outputs, self._inputs):
            if module in hooks:
                hooks[module].rename(fqn)

    def _module_added(self, parent: nn.Module, name: str, module: nn.Module | None) -> None:
        if parent not in self.fqns or not self._observer.is_active:
            return
        self._is_stale = True
        if module is not None:
            for inner, each in clean_modules(module).items():
                if each not in self.fqns:
                    self._add(".".join(part for part in (self.fqns[parent], name, inner) if part), each)

    def _parameter_added(self, parent: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        self._is_stale = self._is_stale or parent in self.fqns
