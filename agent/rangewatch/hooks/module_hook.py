"""What torch calls of ours at a module: its outputs or inputs, and the gradients of its outputs.

A forward hook sees the outputs and puts a hook on each one's gradient. (Full backward hooks would put a function of
their own into the graph, which breaks in-place modules.) A hook keeps no tensor, changes none and returns None.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rangewatch.core import limits
from rangewatch.core.guard import Guard
from rangewatch.recording.eager import hidden_from_modes
from rangewatch.recording.level import LOW_PRECISION, TimedHook
from rangewatch.recording.observer import Observer
from rangewatch.recording.rows.mirror import TENSOR
from rangewatch.recording.tensor_names import leaves

_PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
"""What holds no tensor."""

_mode_count = torch._C._len_torch_dispatch_stack
_is_grad_enabled = torch.is_grad_enabled
_graph_task_id = torch._C._current_graph_task_id
_tracing_state = torch._C._get_tracing_state
_NoTorchFunction = torch._C.DisableTorchFunctionSubclass
_register_hook: Any = Tensor.register_hook


class GradientHook:
    """Reads the gradients of one output or one parameter."""

    __slots__ = ("_dtype", "_has_run", "_identity", "_number", "_observer", "is_on")

    def __init__(self, observer: Observer, fqn: str, kind: str, index: int, module: str) -> None:
        self._observer, self._identity = observer, (fqn, kind, index, module)
        self._dtype: torch.dtype | None = None
        self._number = -1
        self._has_run = False
        self.is_on = True
        """Whether gradients are recorded at this step."""

    def read(self, gradient: Tensor | None) -> None:
        """Hook of an output's gradient."""
        observer = self._observer
        if gradient is None or not observer.is_active or not self.is_on:
            return
        self._has_run = True
        if type(gradient) is Tensor:
            self._read(gradient)
        else:
            with _NoTorchFunction():
                self._read(gradient)

    def _has_number(self, gradient: Tensor) -> bool:
        if gradient.dtype is not self._dtype:
            self._number = self._observer.number(gradient, *self._identity)
            self._dtype = gradient.dtype if self._number >= 0 else None
        return self._number >= 0

    def _read(self, gradient: Tensor) -> None:
        observer = self._observer
        if self._has_number(gradient):
            try:
                observer.read(self._number, gradient)
            except RuntimeError as error:
                observer.explain(error, gradient, self._identity[0], self._identity[1])

    def read_parameter(self, parameter: Tensor) -> None:
        """Hook after a parameter's gradient accumulated: on this rank, before any reduction, still loss-scaled."""
        gradient, observer = parameter.grad, self._observer
        if gradient is None or not observer.is_active or not self.is_on or not observer.is_on_device(gradient):
            self.read(gradient)
            return
        self._has_run = True
        with _NoTorchFunction():
            if not self._has_number(gradient) or not observer.gradients.add(self._number, parameter, gradient):
                self._read(gradient)
            else:
                observer.host.cells[TENSOR] = self._number  # it is read when the backward ends, but here we are

    def rename(self, fqn: str) -> None:
        """The parameter has another name from here on."""
        self._identity, self._dtype = (fqn, *self._identity[1:]), None

    def has_run(self) -> bool:
        """Whether a gradient has been seen, be it one that cannot be observed."""
        return self._has_run

    def has_run_in_evaluation(self) -> bool:
        """There are no gradients in evaluation."""
        return False


class _Slot:
    """One position in a module's outputs: its dtype and number, and the hook for its gradient."""

    __slots__ = ("dtype", "gradient", "gradient_hook", "number")

    def __init__(self, gradient: GradientHook, gradient_hook: TimedHook) -> None:
        self.dtype: torch.dtype | None = None
        self.number = -1
        self.gradient, self.gradient_hook = gradient, gradient_hook


class AfterForward(Protocol):
    """Called when a module's outputs have been read, in eager mode, and while one is compiled."""

    def read(self, leaves: Sequence[Any], numbers: Sequence[int]) -> None:
        """`leaves` were returned, of which those that are recorded have `numbers`, -1 for the others."""

    def compiled(self) -> None:
        """It runs inside a compiled graph."""


class OutputHook:
    """Forward hook of one module; with `kind` "input", its forward pre-hook."""

    def __init__(self, observer: Observer, guard: Guard, fqn: str, module: nn.Module, kind: str = "output") -> None:
        self._observer, self._guard, self._fqn, self._module = observer, guard, fqn, type(module).__name__
        self.kind = kind
        self._reads_tensor = self._reads_gradient = False
        self._slots: list[_Slot] = []
        self._others: set[tuple[int, bool]] = set()
        """Positions of what is no tensor, and whether it was None: reported once."""
        self.leaf_handles: list[RemovableHandle] = []
        self._has_run = self._has_run_in_evaluation = False
        self.after: tuple[AfterForward, ...] = ()
        """What reads more of a router of experts, or of a module that casts by scales; of all others nothing."""
        self.is_compiled = False
        """Whether it has run inside a compiled graph, which takes no further hook."""

    def record(self, kinds: Collection[str]) -> None:
        """Read what `kinds` has of the tensors and their gradients, from here on."""
        self._reads_tensor = self.kind in kinds
        self._reads_gradient = self.kind == "output" and "grad_output" in kinds
        for slot in self._slots:
            slot.gradient.is_on = self._reads_gradient

    def rename(self, fqn: str) -> None:
        """The module has another name from here on."""
        self._fqn, self._slots = fqn, []

    def read(self, module: nn.Module, value: Any) -> None:
        """Read every floating tensor in `value`, the module's output or all its arguments, and hook its gradient."""
        observer = self._observer
        # torch.jit.trace would take our reads into its graph.
        if not observer.is_active or not (self._reads_tensor or self._reads_gradient) or _tracing_state() is not None:
            return
        if observer.is_evaluating or (not module.training and not _is_grad_enabled()):
            observer.skipped["eval_forward"] += 1
            self._has_run_in_evaluation = True
            return
        self._has_run = True
        if type(value) is Tensor:
            self._read(0, value)
        else:
            for index, leaf in enumerate(leaves(value)):
                if type(leaf) is Tensor:
                    self._read(index, leaf)
                elif isinstance(leaf, Tensor):
                    with _NoTorchFunction():  # a subclass may make anything of what is asked of it
                        self._read(index, leaf)
                elif (index, leaf is None) not in self._others:
                    self._note_other(index, leaf, value)
        if self.after and self._reads_tensor and _graph_task_id() == -1:
            with _NoTorchFunction(), hidden_from_modes(leaves(value)):
                numbers = [slot.number if slot.dtype else -1 for slot in self._slots]
                for each in self.after:
                    each.read(leaves(value), numbers)

    def read_compiled(self, index: int, tensor: Tensor) -> None:
        """The compiled module has come to the tensor at position `index`."""
        if self._observer.is_evaluating:
            self._observer.skipped["eval_forward"] += 1
            self._has_run_in_evaluation = True
        elif self._observer.is_active:
            self._has_run = self.is_compiled = True
            for each in self.after:
                each.compiled()
            if tensor.dtype in LOW_PRECISION:
                self._observer.warn_of_rounding()
            if self._reads_tensor:
                # Compiled code uses its tensor objects again for other values; a new object says so to the reader. It
                # needs no gradient, which is hooked otherwise.
                self._read(index, tensor.detach())

    def read_compiled_gradient(self, index: int, gradient: Tensor) -> None:
        """And to its gradient."""
        if self._reads_gradient:
            self._add_slots(index).gradient.read(gradient.detach())

    def has_run(self) -> bool:
        """Whether a forward has been seen that is recorded."""
        return self._has_run

    def has_run_in_evaluation(self) -> bool:
        """Whether a forward has been seen that is not recorded, being evaluation."""
        return self._has_run_in_evaluation

    def _note_other(self, index: int, leaf: Any, value: Any) -> None:
        """`leaf` of `value` is no tensor. An object of the user's own may hold some that nobody sees."""
        if len(self._others) < limits.OTHER_VALUES:
            self._others.add((index, leaf is None))
            word = "None" if leaf is None else "not a tensor"
            self._observer.note_other_value(self._fqn, f"{self.kind}[{index}]", word)
            if not isinstance(leaf, _PLAIN) and not any(isinstance(each, Tensor) for each in leaves(value)):
                self._observer.note_not_observed(self._fqn, f"{self.kind}: {type(leaf).__name__}, not looked into")

    def _read(self, index: int, tensor: Tensor) -> None:
        if index < len(self._slots):
            slot = self._slots[index]
        else:
            slot = self._add_slots(index)
            if self.kind == "output" and not self.is_compiled and _is_grad_enabled() and tensor.is_floating_point():
                graphs = self._observer.graphs
                graphs[self._fqn] = tensor.requires_grad or graphs.get(self._fqn, False)
        if self._reads_tensor and _graph_task_id() != -1:
            # Inside a backward pass a forward is a checkpoint's recomputation: the same values a second time.
            self._observer.skipped["recompute"] += 1
        elif self._reads_tensor:
            if tensor.dtype is not slot.dtype:
                slot.number = self._observer.number(tensor, self._fqn, self.kind, index, self._module)
                slot.dtype = tensor.dtype if slot.number >= 0 else None
            if slot.number >= 0:
                try:
                    if _mode_count():
                        with hidden_from_modes([tensor]):
                            self._observer.read(slot.number, tensor)
                    else:
                        self._observer.read(slot.number, tensor)
                except RuntimeError as error:
                    self._observer.explain(error, tensor, self._fqn, self.kind)
        if self._reads_gradient and tensor.requires_grad:
            self._hook_gradient(tensor, slot.gradient_hook)

    def _add_slots(self, index: int) -> _Slot:
        while len(self._slots) <= index:
            gradient = GradientHook(self._observer, self._fqn, "grad_output", len(self._slots), self._module)
            place, cost = f"grad_output of {self._fqn}", self._observer.cost
            self._slots.append(_Slot(gradient, TimedHook(self._guard, place, gradient.read, cost)))
        return self._slots[index]

    def _hook_gradient(self, tensor: Tensor, hook: TimedHook) -> None:
        grad_fn = tensor.grad_fn
        if grad_fn is None:
            self._hook_leaf(tensor, hook)
            return
        if type(tensor) is not Tensor:
            _register_hook(tensor, hook)
            return
        # What Tensor.register_hook does, less its handle object: 1 us instead of 3 (torch 2.13). Its own keys are
        # whole numbers, so these cannot be taken for one of them.
        hooks: Any = tensor._backward_hooks
        if hooks is None:
            tensor._backward_hooks = hooks = OrderedDict()
            hooks[hook] = hook
            grad_fn._register_hook_dict(tensor)
        else:
            hooks[hook, len(hooks)] = hook

    def _hook_leaf(self, tensor: Tensor, hook: TimedHook) -> None:
        """A leaf (a module may return its parameter) outlives the step: hook it once, and remember that to undo it."""
        if hook not in (tensor._backward_hooks or {}).values():
            self.leaf_handles[:] = [handle for handle in self.leaf_handles if handle.hooks_dict_ref() is not None]
            self.leaf_handles.append(_register_hook(tensor, hook))
