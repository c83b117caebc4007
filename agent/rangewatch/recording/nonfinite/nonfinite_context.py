"""What stood around the first NaN or Inf of a forward: the module's inputs and parameters, and the model's own inputs.

All of it is looked at when an output is found to hold one, on a CPU at that very moment; while everything is finite
nothing is done. An accelerator says so some steps later, when inputs are gone: then it is asked whether the weights
are finite.
Of parameters that are bad, or beside a bad output, it also says what the optimizer knows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, ref

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rangewatch.core import limits
from rangewatch.core.guard import Guard
from rangewatch.recording.events import Events, OpenStep
from rangewatch.recording.nonfinite.allowed_inf import AllowedInf
from rangewatch.recording.nonfinite.loaded_batches import LoadedBatches
from rangewatch.recording.observer import local_part, why_unobservable
from rangewatch.recording.rows.step_buffer import POSITIONS, Block
from rangewatch.recording.tensor_names import TensorNames, leaves
from rangewatch.statistics import reduce
from rangewatch.wire.events import MaskDetails, Nonfinite, OptimizerDetails, TensorDetails
from rangewatch.wire.records import TensorEntry

_MOST_BUFFERS = 8
"""Of one module that are named."""

_BRIEF = 16
"""How many times faster an element is read for its range alone (measured: 0.6 ns and 9 ns, float32)."""


class TensorReader:
    """Reads tensors for one report, `limits.CONTEXT_ELEMENTS` elements in all.

    None for what has no range, cannot be read without waiting for a device, or would be too much.
    """

    def __init__(self) -> None:
        self._left = limits.CONTEXT_ELEMENTS

    def whole(self, name: str, tensor: Tensor) -> TensorDetails | None:
        """With all counts; those of -Inf where there is any."""
        local = self._taken(tensor, 1)
        return None if local is None else _details(name, local, _counts(local))

    def brief(self, name: str, tensor: Tensor) -> TensorDetails | None:
        """With the counts of NaN and Inf alone."""
        local = self._taken(tensor, _BRIEF)
        return None if local is None else _details(name, local, {})

    def large(self, name: str, tensor: Tensor) -> TensorDetails | None:
        """The same with its peaks, of one that is not finite or beyond `limits.LARGE_WEIGHT`; None of others."""
        local = self._taken(tensor, _BRIEF)
        if local is None or local.dtype.itemsize == 1:  # float8 has no comparison
            return None
        details = _details(name, local, {})
        if not details.is_bad and details.amax <= limits.LARGE_WEIGHT:
            return None
        return msgspec.structs.replace(details, **_peaks(local, details.amax))

    def infinities(self, tensor: Tensor) -> tuple[int, int] | None:
        """How many Inf there are, and how many of them are -Inf."""
        local = self._taken(tensor, _BRIEF)
        if local is None or local.dtype.itemsize == 1:  # float8 has no comparison
            return None
        return _infinities(local)

    def _taken(self, tensor: Tensor, speed: int) -> Tensor | None:
        local = local_part(tensor.detach())
        if why_unobservable(local) is not None or not local.is_cpu or local.numel() > self._left * speed:
            return None
        self._left -= local.numel() // speed
        return local.as_subclass(Tensor)


@torch.no_grad()
def _details(name: str, tensor: Tensor, counts: Mapping[str, Any]) -> TensorDetails:
    amax, nan_count, inf_count = reduce.amax_of_blocks(tensor), 0, 0
    if not amax < float("inf"):
        amax, nan_count, inf_count = reduce.count_nonfinite(tensor)
    return TensorDetails(
        name=name[: limits.NAME_CHARACTERS],
        dtype=str(tensor.dtype).removeprefix("torch."),
        numel=tensor.numel(),
        amax=amax,
        nan_count=nan_count,
        inf_count=inf_count,
        shape=tuple(tensor.shape),
        **counts,
    )


@torch.no_grad()
def _counts(tensor: Tensor) -> dict[str, int]:
    zeros = negative = 0
    for block in reduce.blocks(tensor):
        zeros += int(np.count_nonzero((block == 0).numpy()))
        negative += int(np.count_nonzero((block < 0).numpy()))
    counts = {"zero_count": zeros, "negative_count": negative}
    if tensor.dtype.itemsize == 1 or not tensor.dim():  # float8 has no comparison
        return counts
    masked = tensor == float("-inf")
    if masked.any():
        counts |= {"negative_inf_count": int(masked.sum()), "masked_rows": int(masked.all(-1).sum())}
    return counts


@torch.no_grad()
def _infinities(tensor: Tensor) -> tuple[int, int]:
    negative = int((tensor == float("-inf")).sum())
    return negative + int((tensor == float("inf")).sum()), negative


@torch.no_grad()
def _peaks(tensor: Tensor, amax: float) -> dict[str, Any]:
    count, rest = 0, 0.0
    least = limits.LARGE_WEIGHT / 1024 if amax <= limits.LARGE_WEIGHT else amax / 1024
    for block in reduce.blocks(tensor):
        is_rest = block.abs() <= least  # NaN is not
        count += block.numel() - int(is_rest.sum())
        rest = max(rest, float(block[is_rest].abs().max()) if is_rest.any() else 0.0)
    return {"peak_count": count, "rest_amax": rest}


_SETTINGS = ("lr", "eps", "weight_decay", "momentum", "amsgrad")


def optimizer_details(
    optimizers: Sequence[Any], parameters: Sequence[tuple[str, nn.Parameter | None]], reader: TensorReader
) -> OptimizerDetails | None:
    """Of the first of `parameters` that an optimizer has; None where none has any."""
    for name, parameter in parameters[: limits.CONTEXT_TENSORS]:
        for optimizer in optimizers:
            group = None if parameter is None else _group_of(optimizer, parameter)
            if group is not None:
                settings = {each: number for each in _SETTINGS if (number := _number(group.get(each))) is not None}
                state = getattr(optimizer, "state", {}).get(parameter, {})
                tensors = ((key, value) for key, value in state.items() if isinstance(value, Tensor) and value.dim())
                read = tuple(known for key, value in tensors if (known := reader.whole(str(key), value)) is not None)
                gradient = None if parameter is None else _bad_gradient(parameter, reader)
                return OptimizerDetails(type(optimizer).__name__, name, **settings, state=read, gradient=gradient)
    return None


def _bad_gradient(parameter: nn.Parameter, reader: TensorReader) -> TensorDetails | None:
    """None where it is finite: one that was zeroed since the update says nothing of what that was given."""
    read = None if parameter.grad is None else reader.brief("grad", parameter.grad)
    return read if read is not None and read.is_bad else None


def _group_of(optimizer: Any, parameter: nn.Parameter) -> dict[str, Any] | None:
    groups = getattr(optimizer, "param_groups", ())
    return next((group for group in groups if any(each is parameter for each in group["params"])), None)


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return float(value) if value.is_cpu and value.numel() == 1 else None
    return float(value) if isinstance(value, (int, float)) else None


_current_node: Any = getattr(torch._C, "_current_autograd_node", None)

_REPORTED_KINDS = ("output", "weight", "update")

_CALL: Any = getattr(getattr(nn.Module, "_call_impl", None), "__code__", None)


class NonfiniteContext:
    """Reports of each spell of steps with NaN or Inf the first output, weight or update that held it, and others that
    come later for the first time.
    """

    def __init__(
        self,
        names: TensorNames,
        guard: Guard,
        allow_inf: tuple[str, ...],
        fqns: WeakKeyDictionary[nn.Module, str],
        optimizers: Sequence[Any],
        open_step: OpenStep,
        events: Events,
    ) -> None:
        self._names, self._guard, self._fqns = names, guard, fqns
        self._open_step, self._events = open_step, events
        self._allowed = AllowedInf(allow_inf, names)
        self.loaded = LoadedBatches(open_step)
        self._optimizers = [ref(each) for each in optimizers]  # DeepSpeed's hold their model
        self._spell_step = self._reported_step = self._last_device_step = -2
        self._known: set[int] = set()
        """Tensors that have been bad in this spell: what is meant to be Inf, and what it has reached."""
        self._reported = self._reported_in_spell = 0
        self.gradient: tuple[str, Any] | None = None
        """Of the backward under way: the output whose gradient was first seen to hold NaN or Inf in this spell, and its
        node of the graph."""
        self._gradient_step = -2
        self._gradients = 0
        self.wants_weights = False
        """An accelerator held a NaN or Inf: whether weights are finite is to be looked at when the next step opens."""

    def add_optimizer(self, optimizer: Any) -> None:
        """It has come to train the model too."""
        self._optimizers = [each for each in self._optimizers if each() is not None] + [ref(optimizer)]

    def nonfinite_read(self, number: int, nan_count: int, tensor: Tensor) -> None:
        """A tensor of this number, in host memory, holds `nan_count` NaN, or Inf alone."""
        entry, step = self._names.entries[number], self._open_step.number
        if entry.kind == "grad_output":
            self._keep_node(entry.fqn, step)
        if entry.kind not in _REPORTED_KINDS or (not nan_count and self._is_allowed(number)):
            return
        if step > self._spell_step + 1:
            self._known.clear()
            self._reported_in_spell = 0
        self._spell_step = step
        is_new = number not in self._known and step != self._reported_step
        self._known.add(number)
        if (
            is_new
            and self._reported_in_spell < limits.NONFINITE_EVENTS_IN_SPELL
            and self._reported < limits.NONFINITE_EVENTS
        ):
            self._reported, self._reported_in_spell, self._reported_step = (
                self._reported + 1,
                self._reported_in_spell + 1,
                step,
            )
            self._guard.run("context of NaN or Inf", lambda: self._events.add(self._context(entry, tensor)))

    def _keep_node(self, fqn: str, step: int) -> None:
        is_new, self._gradient_step = step > self._gradient_step + 1, step
        if is_new and self._gradients < limits.NONFINITE_EVENTS and _current_node is not None:
            self._gradients += 1
            self.gradient = fqn, _current_node()

    def read_block(self, block: Block) -> None:
        """Steps as they are shipped, with what came from accelerators. Called by the sender's thread."""
        nan_count, inf_count, seen_ns = (
            block.rows[POSITIONS[name]] for name in ("nan_count", "inf_count", "nonfinite_ns")
        )
        late = ((nan_count > 0) | (inf_count > 0)) & np.isinf(seen_ns)
        if not late.any():
            return
        late[:, [each.kind != "output" for each in self._names.entries[: late.shape[1]]]] = False
        for step in block.steps[late.any(axis=1)].tolist():
            is_new, self._last_device_step = step > self._last_device_step + 1, step
            if is_new and self._reported < limits.NONFINITE_EVENTS:
                self._reported += 1
                self.wants_weights = True

    def _is_allowed(self, number: int) -> bool:
        return bool(self._allowed.numbers(number + 1)[number])

    def _context(self, entry: TensorEntry, tensor: Tensor) -> Nonfinite:
        details = Nonfinite(entry.fqn, entry.kind, entry.index, _autocast())
        reader = TensorReader()
        if entry.kind == "output":
            details = self._of_output(details, reader)
            weights = details.weights or ()
            names = [each.name for each in weights if each.is_bad] or [each.name for each in weights[:1]]
        else:
            names = [entry.fqn]
        if (counts := reader.infinities(tensor)) is not None:
            details = msgspec.structs.replace(details, inf_count=counts[0], negative_inf_count=counts[1])
        parameters = [(name, self._parameter(name)) for name in names]
        optimizer = optimizer_details([each() for each in self._optimizers], parameters, reader)
        return msgspec.structs.replace(details, optimizer=optimizer)

    def _of_output(self, details: Nonfinite, reader: TensorReader) -> Nonfinite:
        """With what went into the module and the model, and its weights."""
        call = _call_of(self._module(""))
        if call is not None:
            details = msgspec.structs.replace(details, model_inputs=_inputs(*call, reader))
        elif (entered := self._outermost()) is not None:
            name, call = entered
            details = msgspec.structs.replace(details, model_inputs=_inputs(*call, reader, is_given=True), entered=name)
        if any(each.is_bad for each in details.model_inputs or ()):
            details = msgspec.structs.replace(details, loaded=self.loaded.known(_tensors(call), reader))
        details = msgspec.structs.replace(details, large_weights=self._large_weights(reader))
        module = self._module(details.fqn)
        if module is None:  # a watched value of a name of its own
            return details
        if (call := _call_of(module)) is not None:
            details = msgspec.structs.replace(details, inputs=_inputs(*call, reader), masks=_masks(*call))
        if not details.masks and (around := self._masks_around(details.fqn)) is not None:
            details = msgspec.structs.replace(details, masks=around[1], masks_of=around[0])
        epsilons = [getattr(module, name, None) for name in ("variance_epsilon", "eps")]
        eps = next((value for value in epsilons if isinstance(value, float)), None)
        prefix = f"{details.fqn}." if details.fqn else ""
        weights = ((prefix + name, each) for name, each in _parameters(module) if not is_lazy(each))
        read = tuple(known for weight in weights if (known := reader.brief(*weight)) is not None)
        if not any(each.is_bad for each in details.inputs or ()):
            buffers = (
                (prefix + name, each) for name, each in module.named_buffers(recurse=False) if _stays(module, name)
            )
            read += tuple(islice((known for each in buffers if (known := _bad_buffer(*each, reader))), _MOST_BUFFERS))
        return msgspec.structs.replace(details, eps=eps, weights=read)

    def _outermost(self) -> tuple[str, tuple[tuple[Any, ...], dict[str, Any]]] | None:
        """Of the modules under way the one that was called first: its name, and its arguments."""
        outer: tuple[str, tuple[tuple[Any, ...], dict[str, Any]]] | None = None
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_code is _CALL:
                called = frame.f_locals.get("self")
                fqn = self._fqns.get(called) if isinstance(called, nn.Module) else None
                outer = outer if fqn is None else (fqn, (frame.f_locals["args"], frame.f_locals["kwargs"]))
            frame = frame.f_back
        return outer

    def _masks_around(self, inner: str) -> tuple[str, tuple[MaskDetails, ...]] | None:
        """Of the modules under way that `inner` is in the nearest that was given masks, and these."""
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            called = frame.f_locals.get("self") if frame.f_code is _CALL else None
            fqn = self._fqns.get(called) if isinstance(called, nn.Module) else None
            if fqn is not None and (not fqn or inner.startswith(f"{fqn}.")):
                masks = _masks(frame.f_locals["args"], frame.f_locals["kwargs"])
                if masks:
                    return fqn, masks
            frame = frame.f_back
        return None

    def _large_weights(self, reader: TensorReader) -> tuple[TensorDetails, ...]:
        model = self._module("")
        if model is None:
            return ()
        named = ((name, each) for name, each in model.named_parameters() if not is_lazy(each))
        read = (known for each in named if (known := reader.large(*each)) is not None)
        buffers = (known for each in _staying_buffers(model) if (known := _unwritten_buffer(*each, reader)) is not None)
        return tuple(islice((*islice(buffers, _MOST_BUFFERS), *read), limits.CONTEXT_TENSORS))

    def _module(self, fqn: str) -> nn.Module | None:
        return next((module for module, name in self._fqns.items() if name == fqn), None)

    def _parameter(self, fqn: str) -> nn.Parameter | None:
        path, _, name = fqn.rpartition(".")
        module = self._module(path)
        return None if module is None else getattr(module, name, None)


def _autocast() -> str | None:
    """The dtype to which operations on a CPU are cast here; None where they are not."""
    if not torch.is_autocast_enabled("cpu"):
        return None
    return str(torch.get_autocast_dtype("cpu")).removeprefix("torch.")


def _call_of(module: nn.Module | None) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Positional and keyword arguments of the innermost call of `module` that is under way; None where none is seen.

    Read from torch's own frame. A hook gets them too, but each would have to hand them on, at every call.
    """
    frame = sys._getframe()
    while frame is not None and module is not None:
        if frame.f_code is _CALL and _is_of(frame.f_locals.get("self"), module):
            return frame.f_locals["args"], frame.f_locals["kwargs"]
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _stays(module: nn.Module, name: str) -> bool:
    """Whether this forward has hardly written the buffer: running statistics and codebooks are written in training, and
    are in checkpoints."""
    return not module.training or name in getattr(module, "_non_persistent_buffers_set", ())


def _staying_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for path, module in model.named_modules():
        for name, each in module.named_buffers(recurse=False):
            if each.is_floating_point() and not is_lazy(each) and _stays(module, name):
                yield (f"{path}.{name}" if path else name), each


@torch.no_grad()
def _unwritten_buffer(name: str, buffer: Tensor, reader: TensorReader) -> TensorDetails | None:
    """One that holds NaN, or values that only memory holds that nobody wrote to; None of others. Masks have values
    next to the limit too: below 0, or at it; and what stands for "far away" is one value."""
    known = reader.large(name, buffer)
    if known is None:
        return None
    if not known.nan_count:
        local = local_part(buffer.detach())
        odd = local[(local > limits.UNWRITTEN) & (local < 0.9 * torch.finfo(local.dtype).max)]
        if not odd.numel() or local.numel() == 1 or (odd.numel() > 1 and bool((odd == odd[0]).all())):
            return None
    return msgspec.structs.replace(known, is_buffer=True)


def _bad_buffer(name: str, buffer: Tensor, reader: TensorReader) -> TensorDetails | None:
    """None of one without NaN: one that holds Inf is a mask, or a limit that is none, such as of actions."""
    known = reader.brief(name, buffer)
    return None if known is None or not known.nan_count else msgspec.structs.replace(known, is_buffer=True)


def _tensors(call: tuple[tuple[Any, ...], dict[str, Any]] | None) -> list[Tensor]:
    return [each for each in leaves(call) if isinstance(each, Tensor)]


def _is_of(called: Any, module: nn.Module) -> bool:
    return called is module or getattr(called, "_orig_mod", None) is module  # what torch.compile gives is called


def _inputs(
    args: tuple[Any, ...], kwargs: dict[str, Any], reader: TensorReader, *, is_given: bool = False
) -> tuple[TensorDetails, ...]:
    """`is_given`: but for what was computed with gradient, which is no data."""
    named = ((f"input[{place}]", each) for place, each in enumerate(args))
    inputs: list[TensorDetails] = []
    for name, value in (*named, *kwargs.items()):
        tensors = [each for each in leaves(value) if isinstance(each, Tensor)]
        tensors = [each for each in tensors if not (is_given and each.requires_grad)]
        for place, tensor in enumerate(tensors):
            read = reader.whole(name if len(tensors) == 1 else f"{name}[{place}]", tensor)
            if read is not None and len(inputs) < limits.CONTEXT_TENSORS:
                inputs.append(read)
    return tuple(inputs)


@torch.no_grad()
def _masks(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[MaskDetails, ...]:
    """Booleans, and whole numbers that are all 0 or 1."""
    masks: list[MaskDetails] = []
    for name, value in (*((f"input[{place}]", each) for place, each in enumerate(args)), *kwargs.items()):
        if type(value) is not Tensor or not value.is_cpu or value.dim() < 2 or not value.numel():
            continue
        if value.is_floating_point() or value.is_complex() or value.numel() > limits.CONTEXT_ELEMENTS:
            continue
        if value.dtype is not torch.bool and not (int(value.min()) >= 0 and int(value.max()) <= 1):
            continue
        ones = value.bool()
        rows = ones.numel() // ones.shape[-1]
        counts = rows, rows - int(ones.any(-1).sum()), int(ones.all(-1).sum())
        masks.append(MaskDetails(name[: limits.NAME_CHARACTERS], *counts))
    return tuple(masks[: limits.CONTEXT_TENSORS])


def _parameters(module: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    """Its own first; those of the modules in it too, which it may use without calling them."""
    return islice(_by_depth(module), limits.CONTEXT_TENSORS)


def _by_depth(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    yield from module.named_parameters(recurse=False)
    yield from ((name, each) for name, each in module.named_parameters() if "." in name)
