"""Reads inside what `torch.compile` has compiled: an operator that the compiler keeps, in its place and in its order.

It has no result and an effect of its own, so the compiler neither drops, doubles nor reorders it, and nothing in the
graph depends on it: results stay what they were. When AOTAutograd traces the backward, the operator's autograd kernel
hooks the tensor's gradient as an eager hook would, and so the gradient's read is traced into the backward.

Which module is read is not written into the graph but in `key`, a tensor: so equal blocks, compiled one by one, share
their graphs. The key is looked up when the graph runs; after `detach` nothing is found, and the read does nothing.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from rangewatch.core.guard import Guard, Guarded
from rangewatch.recording.eager import run_eagerly
from rangewatch.recording.level import LOW_PRECISION, Recording, TimedHook
from rangewatch.recording.tensor_names import leaves

_Library: Any = torch.library.Library
_LIBRARY = _Library("rangewatch", "DEF")
_TAGS = tuple(getattr(torch.Tag, name) for name in ("cudagraph_unsafe",) if hasattr(torch.Tag, name))
for _schema in (
    "read(Tensor tensor, Tensor key, int index, bool watches_gradient) -> ()",
    "read_gradient(Tensor gradient, Tensor key, int index) -> ()",
    "call(Tensor key) -> ()",
):
    _LIBRARY.define(_schema, tags=_TAGS)  # a CUDA graph would read once, when it is captured, and never again
_read: Any = torch.ops.rangewatch.read.default
_read_gradient: Any = torch.ops.rangewatch.read_gradient.default
_call: Any = torch.ops.rangewatch.call.default

_is_compiling = torch.compiler.is_dynamo_compiling
_is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)
_numbers = itertools.count()


class CompiledReads:
    """One module's reads in compiled graphs: `read(index, tensor)` and `read_gradient(index, gradient)`."""

    __slots__ = ("__weakref__", "_key", "_recording", "_watches_gradient", "number", "read", "read_gradient")

    def __init__(self, read: Guarded, read_gradient: Guarded | None, recording: Recording | None = None) -> None:
        self.read, self.read_gradient, self._recording = read, read_gradient, recording
        self._watches_gradient = read_gradient is not None
        self.number, self._key = _new_key(self)

    def trace(self, value: Any) -> None:
        """Called while the compiler traces the module: puts a read of each tensor in `value` into its graph."""
        recording = self._recording
        if IS_SUPPORTED and not _is_exporting() and recording is not None:
            for index, leaf in enumerate(leaves(value)):
                if isinstance(leaf, Tensor) and _is_readable(leaf) and _may_read(recording, leaf):
                    _read(leaf, self._key, index, self._watches_gradient)


class CompiledCall(Guarded):
    """A guarded hook that may be called where the compiler traces, as an optimizer's is: called when the graph runs."""

    __slots__ = ("_key",)

    def __init__(self, guard: Guard, place: str, body: Callable[..., Any]) -> None:
        super().__init__(guard, place, body)
        _, self._key = _new_key(self)

    def __call__(self, *args: Any) -> None:
        if IS_SUPPORTED and _is_compiling():
            _call(self._key)
        else:
            super().__call__(*args)


_known: WeakValueDictionary[int, CompiledReads | CompiledCall] = WeakValueDictionary()


def _new_key(known: CompiledReads | CompiledCall) -> tuple[int, Tensor]:
    number = next(_numbers)
    _known[number] = known
    return number, torch.tensor(number, device="cpu")


def _may_read(recording: Recording, tensor: Tensor) -> bool:
    # Traced itself: the compiler guards on the attribute.
    return recording.reads_low_precision or not leaves_unread(recording, tensor.dtype in LOW_PRECISION)


def leaves_unread(recording: Recording, is_low_precision: bool) -> bool:
    """Called while the compiler traces: whether the graph is one of low precision, which is not read unasked.

    `is_low_precision`: of the tensor at hand. The graph may have reads already when it turns out to be one: torch then
    traces it again, from its beginning.
    """
    if getattr(sys.modules.get("torch._inductor.config"), "emulate_precision_casts", False):
        return False  # it rounds everywhere
    if not recording.has_low_precision and (is_low_precision or _is_autocasting()):
        recording.has_low_precision = True
        restart: Any = getattr(torch._dynamo.exc, "UnspecializeRestartAnalysis", None)
        if restart is not None:
            raise restart(restart_reason="rangewatch reads nothing in low precision")
    return recording.has_low_precision


# What torch.compiler.assume_constant_result does, whose use imports a second's worth of compiler.
leaves_unread._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _is_autocasting() -> bool:
    return any(
        torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) in LOW_PRECISION
        for device in {"cpu", torch._C._get_accelerator().type}
    )


def trace_value(tensor: Tensor, number: int) -> None:
    """Put a read of one tensor into the graph that is being traced, for the `CompiledReads` of this number."""
    if IS_SUPPORTED and not _is_exporting() and _is_readable(tensor):
        _read(tensor, torch.full((), number, dtype=torch.int64, device="cpu"), 0, True)


def _is_readable(tensor: Tensor) -> bool:
    """What the compiler can know of `observer.why_unobservable`."""
    is_plain = type(tensor) is Tensor or type(tensor) is torch.nn.Parameter
    return is_plain and tensor.is_floating_point() and tensor.layout is torch.strided and not tensor.is_meta


def _run_read(tensor: Tensor, key: Tensor, index: int, watches_gradient: bool) -> None:
    reads = _known.get(int(key))
    if isinstance(reads, CompiledReads):
        reads.read(index, tensor)


def _run_read_gradient(gradient: Tensor, key: Tensor, index: int) -> None:
    reads = _known.get(int(key))
    if isinstance(reads, CompiledReads) and reads.read_gradient is not None:
        reads.read_gradient(index, gradient)


def _run_call(key: Tensor) -> None:
    call = _known.get(int(key))
    if isinstance(call, CompiledCall):
        call()


def _hook_gradient_and_read(tensor: Tensor, key: Tensor, index: int, watches_gradient: bool) -> None:
    # While AOTAutograd traces, `tensor` stands for the one in the graph. A real leaf outlives the step, and would
    # gather a hook at each.
    is_real_leaf = tensor.grad_fn is None and type(tensor) in (Tensor, torch.nn.Parameter)
    if watches_gradient and tensor.requires_grad and not is_real_leaf:
        register: Any = tensor.register_hook
        register(functools.partial(_traced_gradient, key=key, index=index))
    with torch._C._AutoDispatchBelowAutograd():
        _read(tensor, key, index, watches_gradient)


def _traced_gradient(gradient: Tensor, key: Tensor, index: int) -> None:
    _read_gradient(gradient, key, index)


def _batched(info: Any, in_dims: Any, *args: Any) -> tuple[None, None]:
    """Under `torch.vmap` nothing is read, as in eager mode."""
    return None, None


def _register() -> bool:
    """Give the operators their meanings; False where torch does not keep them in a graph as it must."""
    # Measured: 2.13 passes all tests. 2.6 drops reads from graphs without gradients and cannot trace some containers.
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13):
        return False
    try:
        from torch._higher_order_ops.effects import _EffectType, _register_effectful_op  # noqa: PLC0415 - private
    except ImportError:
        return False
    _LIBRARY.impl("read", _run_read, "CompositeExplicitAutograd")
    _LIBRARY.impl("read", _hook_gradient_and_read, "Autograd")
    _LIBRARY.impl("read_gradient", _run_read_gradient, "CompositeExplicitAutograd")
    _LIBRARY.impl("call", _run_call, "CompositeExplicitAutograd")
    for operator in (_read, _read_gradient, _call):
        torch.library.register_fake(operator.name(), lambda *args: None, lib=_LIBRARY)
        torch.library.register_vmap(operator.name(), _batched, lib=_LIBRARY)
        _register_effectful_op(operator, _EffectType.ORDERED)
    return True


IS_SUPPORTED = _register()
"""Whether compiled regions are read; where not, their modules are "not observed"."""
run_eagerly(Guarded.__call__)
run_eagerly(TimedHook.__call__)
run_eagerly(CompiledCall.__call__)
