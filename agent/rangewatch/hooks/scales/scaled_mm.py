"""Calls of `torch._scaled_mm` and `torch.nn.functional.scaled_mm` by the user: numbers of one byte and their scales.

In a forward the first operand is the input and the second, as in `linear`, the weight; further products of a function
of autograd's have the next indexes. Which is which in a backward is the caller's own affair: there the rows are named
by the function, of kind `scaled_grad_output`, with an index by place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

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
_FRAMES = 4  # from the call outwards, in which the `ctx` of a function of autograd's is looked for
_PRODUCTS = 8  # of one forward or backward that have rows of their own; further ones share the last
_LIBRARIES = {"torchao", "transformer_engine"}

BLOCKED = "scales: in the layout that its kernel wants, which is not read"


class Product(NamedTuple):
    """A call's two operands, each with its scale (one, or a list of them), as they were given."""

    codes: tuple[Any, Any]
    scales: tuple[Any, Any]


class _Caller:
    """Which module a `ctx` is of, and the products that its forward, or a backward, has had so far."""

    __slots__ = ("_count", "_task", "fqn", "module")

    def __init__(self, fqn: str, module: str) -> None:
        self.fqn, self.module = fqn, module
        self._task, self._count = -1, 0

    def next(self, task: int) -> int:
        """The number of a product, from 0 in each backward pass (`task`; -1: in the forward)."""
        if task != self._task:
            self._task, self._count = task, 0
        self._count += 1
        return min(self._count, _PRODUCTS) - 1


class ScaledProducts:
    """Those of one attached model. `reads_all` False: as long as no parameter or buffer of it has a format of 8 bits,
    nothing is wrapped.
    """

    def __init__(
        self, reads: ScaleReads, observer: Observer, guard: Guard, selection: Selection, recording: Recording,
        fqns: WeakKeyDictionary[nn.Module, str], *, reads_all: bool,
    ) -> None:  # fmt: skip
        self._reads, self._observer, self._selection = reads, observer, selection
        self._recording, self._fqns, self._reads_all = recording, fqns, reads_all
        self._callers: WeakKeyDictionary[FunctionCtx, _Caller] = WeakKeyDictionary()
        self._listener = TimedHook(guard, "a scaled product", self._multiplied, observer.cost)

    def find(self, modules: Mapping[str, nn.Module]) -> None:
        """Listen where it was asked for, or a module holds numbers of 8 bits or less."""
        if self._reads_all or any(_has_small(module) for module in modules.values()):
            self._reads.schedule.note_unusual()
            for each in FUNCTIONS:
                each.listen(self._listener)

    def remove(self) -> None:
        """Listen no more."""
        for each in FUNCTIONS:
            each.forget(self._listener)

    def _multiplied(self, frame: FrameType, read: Read, args: Any, kwargs: Any, out: Any) -> None:
        if not self._reads.schedule.is_due:
            return
        if not self._observer.is_active or self._observer.is_evaluating or _of_library(frame):
            return
        ctx = function_context(frame, _FRAMES)
        caller = self._callers.get(ctx) if ctx is not None else None
        is_backward = ctx is not None and is_backward_of(ctx)
        if caller is None:
            found = None if is_backward else calling_module(frame, self._fqns)
            if found is None or not (found[0].training or torch.is_grad_enabled()):
                return
            caller = _Caller(found[1], class_of(found[0]))
            if ctx is not None:
                self._callers[ctx] = caller
        if is_backward:
            at = 2 * caller.next(_graph_task_id())
            kinds, name = ((GRAD_OUTPUT, at), (GRAD_OUTPUT, at + 1)), f"{caller.fqn} {frame.f_code.co_name}".strip()
        elif _graph_task_id() != -1:  # activation checkpointing's second forward
            return
        else:
            at = caller.next(-1)
            kinds, name = ((INPUT, at), (WEIGHT, at)), caller.fqn
        wanted = "grad_output" if is_backward else "output"
        if self._selection.has(caller.fqn) and wanted in self._recording.wanted(caller.fqn):
            product: Product = read(args, kwargs, out)
            for role, codes, scale in zip(kinds, product.codes, product.scales, strict=True):
                self._read(Operand(name, *role, caller.module), codes, scale)

    def _read(self, operand: Operand, codes: Any, scale: Any) -> None:
        scale = scale[0] if isinstance(scale, (list, tuple)) and len(scale) == 1 else scale
        if not isinstance(codes, Tensor):
            return
        format = scales.OF_DTYPE.get(str(codes.dtype).removeprefix("torch."), "")
        if not isinstance(scale, Tensor) or codes.dim() != 2 or format == "E2M1" or not _fits(codes, scale):
            self._observer.note_not_observed(operand.fqn, BLOCKED)
            return
        scale_format = "e8m0" if "e8m0" in str(scale.dtype) else "float32"
        about = ScaledOperand("", "", format=format, scale_format=scale_format, source="torch._scaled_mm")
        self._reads.read_codes(operand, codes, scale, about)


def _fits(codes: Tensor, scale: Tensor) -> bool:
    """Whether the scales lie by rows and columns: those of a kernel's own layout are of another shape."""
    if scale.numel() == 1:
        return True
    return scale.dim() == 2 and all(n and size % n == 0 for size, n in zip(codes.shape, scale.shape, strict=True))


def _of_library(frame: FrameType) -> bool:
    """A call of torchao's is of operands that `casts` has read, before they were cast."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _LIBRARIES


def _has_small(module: nn.Module) -> bool:
    held = (*module._parameters.values(), *module._buffers.values())
    with torch._C.DisableTorchFunctionSubclass():  # a subclass may make anything of what it is asked
        return any(each is not None and str(each.dtype).removeprefix("torch.") in scales.OF_DTYPE for each in held)


def _of_v1(args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Product:
    names = ("self", "mat2", "scale_a", "scale_b")
    given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
    return Product((given.get("self"), given.get("mat2")), (given.get("scale_a"), given.get("scale_b")))


def _of_v2(args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Product:
    names = ("mat_a", "mat_b", "scale_a", "scale_recipe_a", "scale_b")
    given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
    return Product((given.get("mat_a"), given.get("mat_b")), (given.get("scale_a"), given.get("scale_b")))


FUNCTIONS: Iterable[WatchedFunction] = (
    WatchedFunction("torch", "_scaled_mm", _of_v1),
    WatchedFunction("torch.nn.functional", "scaled_mm", _of_v2),
)
