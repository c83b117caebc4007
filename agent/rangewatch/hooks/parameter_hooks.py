"""Hooks on the gradient of each parameter, as it accumulates on this rank.

Parameters that FSDP1 keeps as pieces of one flat parameter: their own names, and their pieces of its gradient.

The flat parameter's gradient is read as it accumulates: whole, on its own rank and before FSDP reduces and shards it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from rangewatch.core import limits
from rangewatch.core.guard import Guard
from rangewatch.core.selection import Selection
from rangewatch.hooks.module_hook import GradientHook
from rangewatch.hooks.optimizers.kept_gradients import KeptGradients
from rangewatch.recording.level import Recording, TimedHook
from rangewatch.recording.observer import Observer
from rangewatch.recording.tensor_names import clean_modules, clean_parameters

_NEEDED = ("_is_padding_mask", "_numels_with_padding", "_param_infos", "_shapes")


class FlatLayout(NamedTuple):
    """What a flat parameter holds: `names` in the order of the elements, None where they are padding."""

    names: list[str | None]
    shapes: list[torch.Size]
    numels: list[int]

    def split(self, gradient: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Name and gradient of each parameter, from the flat gradient."""
        shapes = iter(self.shapes)
        for name, piece in zip(self.names, torch.split(gradient, self.numels), strict=True):
            if name is not None:
                yield name, piece.view(next(shapes))


def flat_parameters(model: nn.Module) -> list[tuple[nn.Parameter, FlatLayout]]:
    """Those of all FSDP1 units in `model`, wrapped with or without `use_orig_params`."""
    names = {id(module): fqn for fqn, module in clean_modules(model).items()}
    candidates: Iterator[Any] = (
        getattr(getattr(module, "_handle", None), "flat_param", None) for module in model.modules()
    )
    return [(flat, _layout(flat, names)) for flat in candidates if all(hasattr(flat, name) for name in _NEEDED)]


def own_parameters(model: nn.Module, flat: list[tuple[nn.Parameter, FlatLayout]]) -> Iterator[tuple[str, nn.Parameter]]:
    """The model's other parameters, by clean name."""
    others = {id(parameter) for parameter, _ in flat}
    others |= {id(piece) for parameter, _ in flat for piece in getattr(parameter, "_params", None) or ()}
    return ((fqn, parameter) for fqn, parameter in clean_parameters(model) if id(parameter) not in others)


def _layout(flat: Any, names: dict[int, str]) -> FlatLayout:
    fqns = (_fqn(names.get(id(info.module), info.module_name), info.param_name) for info in flat._param_infos)
    pieces = [None if is_padding else next(fqns) for is_padding in flat._is_padding_mask]
    return FlatLayout(pieces, list(flat._shapes), list(flat._numels_with_padding))


def _fqn(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name


def _is_ready(parameter: nn.Parameter) -> bool:
    return parameter.requires_grad and parameter.is_leaf and not is_lazy(parameter)


class ParameterHooks:
    """Hooks on the gradients of all parameters: on those that are trainable, and on frozen ones once they are."""

    def __init__(
        self, observer: Observer, guard: Guard, model: nn.Module, selection: Selection, recording: Recording
    ) -> None:
        self._observer, self._guard, self._selection, self._recording = observer, guard, selection, recording
        self._handles: list[RemovableHandle] = []
        self._fqns: Any = WeakTensorKeyDictionary()
        """Parameter -> its name, "" for flat ones: all that have been looked at."""
        self._own: Any = WeakTensorKeyDictionary()
        """Parameter -> its hook, of those that are hooked."""
        self._flat: dict[str, GradientHook] = {}
        self._frozen: list[ref[nn.Parameter]] = []
        self.kept = KeptGradients()
        self._followed: set[int] | None = None
        """`id` of the parameters that `kept` follows; None before any is hooked."""
        self.refresh(model)

    def refresh(self, model: nn.Module) -> None:
        """Hook the parameters of the model that are not hooked yet, and name the others as they are named now."""
        flat = flat_parameters(model)
        for fqn, parameter in own_parameters(model, flat):
            known, self._fqns[parameter] = self._fqns.get(parameter), fqn
            if known is None and self._selection.has(fqn):
                self._frozen.append(ref(parameter))
            elif known != fqn and parameter in self._own:
                self._rename(self._own[parameter], known, fqn)
        for parameter, layout in flat:
            if parameter not in self._fqns:
                self._fqns[parameter] = ""
                self._hook_flat(parameter, layout)
        self.hook_trainable()

    def hook_trainable(self) -> None:
        """Hook what has become trainable since the last call, or has been initialised by a lazy module."""
        frozen, self._frozen = self._frozen, []
        if self._followed is None:
            ready = [id(each) for reference in frozen if (each := reference()) is not None and _is_ready(each)]
            self._followed = {*ready[:1], *ready[-1:]} if ready else None
        for reference in frozen:
            parameter = reference()
            if parameter is None:
                continue
            if _is_ready(parameter):
                fqn = self._fqns[parameter]
                hook = self._own[parameter] = self._gradient_hook(fqn)
                read: Callable[[Tensor], None] = hook.read_parameter
                if self._followed and id(parameter) in self._followed:
                    self._followed.discard(id(parameter))
                    read = self.kept.follow(parameter, read)
                self._register(parameter, fqn, read)
            else:
                self._frozen.append(reference)

    def has_few_frozen(self) -> bool:
        """Whether looking at the frozen ones costs next to nothing."""
        return len(self._frozen) <= limits.FROZEN_A_STEP

    def record(self) -> None:
        """Ask anew whose `grad` is recorded."""
        wanted = self._recording.wanted
        for parameter, hook in list(self._own.items()):
            hook.is_on = "grad" in wanted(self._fqns[parameter])
        for fqn, hook in self._flat.items():
            hook.is_on = "grad" in wanted(fqn)

    def remove(self) -> None:
        """Take all hooks away, and add none from here on."""
        self._frozen = []
        for handle in self._handles:
            handle.remove()

    def _rename(self, hook: GradientHook, was: str, fqn: str) -> None:
        hook.rename(fqn)
        hook.is_on = "grad" in self._recording.wanted(fqn)
        unreached = self._observer.unreached
        if unreached.get(was) is hook:
            unreached[fqn] = unreached.pop(was)

    def _hook_flat(self, parameter: nn.Parameter, layout: FlatLayout) -> None:
        names = [fqn for fqn in layout.names if fqn is not None and self._selection.has(fqn)]
        hooks = {fqn: self._gradient_hook(fqn) for fqn in names}
        self._flat.update(hooks)

        def read(parameter: Tensor) -> None:
            if parameter.grad is not None:
                for fqn, gradient in layout.split(parameter.grad):
                    if fqn in hooks:
                        hooks[fqn].read(gradient)

        self._register(parameter, ", ".join(hooks), read)

    def _gradient_hook(self, fqn: str) -> GradientHook:
        hook = GradientHook(self._observer, fqn, "grad", 0, "Parameter")
        hook.is_on = "grad" in self._recording.wanted(fqn)
        self._observer.unreached[fqn] = hook
        return hook

    def _register(self, parameter: nn.Parameter, fqn: str, read: Callable[[Tensor], None]) -> None:
        register: Any = parameter.register_post_accumulate_grad_hook
        place = f"grad of {fqn}"[: limits.NAME_CHARACTERS]
        handle = register(TimedHook(self._guard, place, read, self._observer.cost))
        # An optimizer that steps in the backward may have put its hook there before us, and sets the gradient to None.
        hooks: Any = parameter._post_accumulate_grad_hooks
        for key in [key for key in hooks if key != handle.id]:
            hooks[key] = hooks.pop(key)  # the engine goes by the order of insertion: `move_to_end` would not do
        self._handles.append(handle)
