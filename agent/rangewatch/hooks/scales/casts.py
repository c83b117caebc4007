"""Casts of torchao's: float8 training, MX and NVFP4, read where the values before the cast and the scale both are.

A cast is called by a function of autograd's, whose `ctx` is one and the same object in forward and backward. So the
module that it stands in is looked for once, in the forward, and is known by `ctx` from there on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from rangewatch.core.guard import Guard
from rangewatch.core.selection import Selection
from rangewatch.hooks.scales.operand import GRAD_OUTPUT, INPUT, WEIGHT, Operand, class_of
from rangewatch.hooks.scales.reads import ScaleReads
from rangewatch.hooks.watched_function import Read, WatchedFunction, calling_module, function_context, is_backward_of
from rangewatch.recording.level import Recording, TimedHook
from rangewatch.recording.observer import Observer
from rangewatch.statistics import scales
from rangewatch.wire.events import ScaledOperand

_graph_task_id = torch._C._current_graph_task_id
_INFINITY = math.inf

NEVER_READ = "scales: no cast of it was seen: compiled, or cast by other means"

_ROLES = {"INPUT": INPUT, "WEIGHT": WEIGHT, "GRAD_OUTPUT": GRAD_OUTPUT}
"""Of torchao's `GemmInputRole`."""

_LOCALS = {
    "input_hp_r": (INPUT, 0), "_input": (INPUT, 0), "_input_2d": (INPUT, 0), "input_hp": (INPUT, 0),
    "weight_hp": (WEIGHT, 0), "weight": (WEIGHT, 0), "weight_hp_t_c": (WEIGHT, 1),
    "grad_output_hp_r": (GRAD_OUTPUT, 0),
}  # fmt: skip
"""What torchao's functions call the tensor that they cast to MX or NVFP4, and which operand that is."""


class Cast(NamedTuple):
    """One call: what was cast, by which factor it is multiplied, and how. `kind`: "" where it shows only by who calls.
    `along`: the dimension that has one scale, None where all has.
    """

    values: Any
    factor: Any
    about: ScaledOperand
    kind: str = ""
    along: int | None = None


class _Place:
    """What is known of a `ctx`: the name and class of the module. No tensor. `seen`: operands that are read, or not to
    be; `whole`: kinds that the forward has cast by one scale.
    """

    __slots__ = ("fqn", "module", "seen", "whole")

    def __init__(self, fqn: str, module: str, seen: set[tuple[str, int]]) -> None:
        self.fqn, self.module, self.seen = fqn, module, seen
        self.whole: set[str] = set()


_FORWARD, _ALL = {(INPUT, 0), (WEIGHT, 0)}, {(kind, at) for kind in (INPUT, WEIGHT, GRAD_OUTPUT) for at in (0, 1)}


class CastingModule:
    """A module that casts. Called after each of its forwards, and where it is compiled."""

    def __init__(self, reads: CastReads, module: nn.Module) -> None:
        self._reads, self._module = reads, ref(module)

    def read(self, leaves: Sequence[Any], numbers: Sequence[int]) -> None:
        """A forward is over."""
        self.compiled()

    def compiled(self) -> None:
        """It runs inside a compiled graph."""
        module = self._module()
        if module is not None:
            self._reads.called(module)


class CastReads:
    """Those of one attached model, once a module of it is known to cast."""

    def __init__(
        self, reads: ScaleReads, observer: Observer, guard: Guard, selection: Selection, recording: Recording,
        fqns: WeakKeyDictionary[nn.Module, str],
    ) -> None:  # fmt: skip
        self._reads, self._observer, self._selection = reads, observer, selection
        self._recording, self._fqns, self._schedule = recording, fqns, reads.schedule
        self._places: WeakKeyDictionary[FunctionCtx, _Place] = WeakKeyDictionary()
        self._listener = TimedHook(guard, "a cast", self._cast, observer.cost)

    def find(self, modules: Mapping[str, nn.Module]) -> None:
        """Listen where a module is one of torchao's that cast."""
        if any(casts(module) for module in modules.values()):
            self._reads.schedule.note_unusual()  # whatever of them is new is read in the next step
            for each in FUNCTIONS:
                each.listen(self._listener)

    def of(self, module: nn.Module) -> CastingModule | None:
        """What is called after the module's forwards, where it is one that casts."""
        return CastingModule(self, module) if casts(module) else None

    def called(self, module: nn.Module) -> None:
        """A forward that is no evaluation is over: where its outputs are recorded and no cast is seen, that is said."""
        fqn = self._fqns.get(module) if self._reads.schedule.is_due else None
        if fqn is not None and self._selection.has(fqn) and "output" in self._recording.wanted(fqn):
            self._reads.expect(fqn, NEVER_READ)

    def remove(self) -> None:
        """Listen no more."""
        for each in FUNCTIONS:
            each.forget(self._listener)

    def _cast(self, frame: FrameType, read: Read, args: Any, kwargs: Any, out: Any) -> None:
        # As in most steps: it must cost next to nothing there.
        if not self._schedule.is_due and (_is_usual(out) or not self._schedule.note_unusual()):
            return
        began_ns = time.thread_time_ns()
        try:
            self._read_cast(frame, read, args, kwargs, out)
        finally:
            self._schedule.add(began_ns)

    def _read_cast(self, frame: FrameType, read: Read, args: Any, kwargs: Any, out: Any) -> None:
        if not self._observer.is_active or self._observer.is_evaluating:
            return
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            cast: Cast | None = read(args, kwargs, out)
        if cast is None or not isinstance(cast.values, Tensor):
            return
        place = self._place(frame)
        role = self._role(frame, cast, place) if place is not None else None
        if place is None or role is None or role in place.seen:
            return
        place.seen.add(role)
        if ("grad_output" if role[0] == GRAD_OUTPUT else "output") not in self._recording.wanted(place.fqn):
            return
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            self._reads.read_values(Operand(place.fqn, *role, place.module), cast.values, cast.factor, cast.about)
            if role == (INPUT, 0):
                self._read_cast_weight(frame, place)

    def _place(self, frame: FrameType) -> _Place | None:
        ctx = function_context(frame)
        if ctx is not None:
            place = self._places.get(ctx)
            if place is not None or is_backward_of(ctx):  # of a forward that was not read
                return place
        found = calling_module(frame, self._fqns)
        if found is None:
            return None
        module, fqn = found
        seen = set()
        is_training = module.training or torch.is_grad_enabled()
        if not self._selection.has(fqn) or not is_training:
            seen = set(_ALL)
        elif _graph_task_id() != -1:  # activation checkpointing's second forward: its casts are those of the first
            seen = set(_FORWARD)
        place = _Place(fqn, class_of(module), seen)
        if ctx is not None:
            self._places[ctx] = place
        return place

    def _role(self, frame: FrameType, cast: Cast, place: _Place) -> tuple[str, int] | None:
        if not cast.kind:
            names = frame.f_locals if _is_torchaos(frame) else {}
            return next((role for name, role in _LOCALS.items() if names.get(name) is cast.values), None)
        if cast.kind == GRAD_OUTPUT:  # along rows for the gradient of the input, along columns for that of the weight
            return cast.kind, int(cast.along == 0)
        if frame.f_code.co_name != "backward":
            if cast.along is None:
                place.whole.add(cast.kind)
            return cast.kind, 0
        # What one scale is made for is cast anew by the same.
        return None if cast.along is None and cast.kind in place.whole else (cast.kind, 1)

    def _read_cast_weight(self, frame: FrameType, place: _Place) -> None:
        """Of a weight that FSDP has gathered in float8 already."""
        weight = frame.f_locals.get("weight_hp_t") if _is_torchaos(frame) else None
        data, scale = getattr(weight, "_data", None), getattr(weight, "_scale", None)
        if not isinstance(data, Tensor) or not isinstance(scale, Tensor) or (WEIGHT, 0) in place.seen:
            return
        place.seen.add((WEIGHT, 0))
        about = ScaledOperand("", "", format=_format(data.dtype), source="torchao float8", recipe="cast before FSDP")
        self._reads.read_codes(Operand(place.fqn, WEIGHT, 0, place.module), data, scale.reciprocal(), about)


def casts(module: nn.Module) -> bool:
    """Whether a module is one of torchao's that cast its operands."""
    return any(
        each.__name__ in _CLASSES and each.__module__.partition(".")[0] == "torchao" for each in type(module).__mro__
    )


_CLASSES = {
    "Float8Linear", "MXLinear", "MXFP8Linear", "MXFakeQuantizedLinear", "NVFP4FakeQuantizedLinear", "MXInferenceLinear",
}  # fmt: skip


def _is_usual(out: Any) -> bool:
    """Whether one scale of the whole tensor, in host memory, is a number above 0. Of others nothing is asked."""
    scale = getattr(out, "_scale", None)
    if type(scale) is not Tensor or not scale.is_cpu or scale.numel() != 1:
        return True
    return 0.0 < scale.item() < _INFINITY


def _is_torchaos(frame: FrameType) -> bool:
    """Up to Python 3.12 to look at locals keeps them until the frame returns: the user's are never looked at."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "torchao"


def _format(dtype: Any) -> str:
    return scales.OF_DTYPE.get(str(dtype).removeprefix("torch."), "")


def _of_float8(args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Cast | None:
    names = (
        "hp_tensor", "float8_dtype", "linear_mm_config", "reduce_amax", "gemm_input_role", "device_mesh",
        "scaling_granularity", "axiswise_dim", "round_scales_to_power_of_2",
    )  # fmt: skip
    given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
    role = _ROLES.get(getattr(given.get("gemm_input_role"), "name", "INPUT"))
    scale = getattr(out, "_scale", None)
    if role is None or not isinstance(scale, Tensor):
        return None
    granularity = getattr(given.get("scaling_granularity"), "value", "tensorwise")
    recipe = f"dynamic, {granularity}{', powers of two' if given.get('round_scales_to_power_of_2') else ''}"
    about = ScaledOperand("", "", format=_format(given.get("float8_dtype")), source="torchao float8", recipe=recipe)
    return Cast(given.get("hp_tensor"), scale, about, role, given.get("axiswise_dim"))


def _of_mx(args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Cast | None:
    names = ("data_hp", "elem_dtype", "block_size", "scaling_mode")
    given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
    mode = getattr(given.get("scaling_mode"), "value", "floor")
    return _of_blocks(given.get("data_hp"), out, _format(getattr(out, "elem_dtype", None)), "e8m0", f"MX, {mode}")


def _of_nvfp4(args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Cast | None:
    values = args[0] if args else kwargs.get("data_hp")
    per_tensor = getattr(out, "per_tensor_scale", None)
    recipe = "NVFP4, two-level" if per_tensor is not None else "NVFP4, blocks alone"
    return _of_blocks(values, out, "E2M1", "e4m3", recipe, per_tensor)


def _of_blocks(
    values: Any, out: Any, format: str, scale_format: str, recipe: str, per_tensor: Tensor | None = None
) -> Cast | None:  # fmt: skip
    scale = getattr(out, "scale", None)
    if not isinstance(values, Tensor) or not isinstance(scale, Tensor) or getattr(out, "is_swizzled_scales", False):
        return None
    wide = scale.detach().float() if per_tensor is None else scale.detach().float() * per_tensor
    about = ScaledOperand("", "", format=format, scale_format=scale_format, source="torchao", recipe=recipe)
    return Cast(values, wide.reciprocal(), about)


FUNCTIONS: Iterable[WatchedFunction] = (
    WatchedFunction("torchao.float8.float8_linear", "hp_tensor_to_float8_dynamic", _of_float8),
    WatchedFunction("torchao.prototype.mx_formats.mx_tensor:MXTensor", "to_mx", _of_mx),
    WatchedFunction("torchao.prototype.mx_formats.nvfp4_tensor:NVFP4Tensor", "to_nvfp4", _of_nvfp4),
)
