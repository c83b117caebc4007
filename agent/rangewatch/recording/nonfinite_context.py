"""What stood around the first NaN or Inf of a forward: the module's inputs and parameters, and the model's own inputs.

All of it is looked at when an output is found to hold one, on a CPU at that very moment; while everything is finite
nothing is done. An accelerator says so some steps later, when inputs are gone: then it is asked whether the weights
are finite.

Facts of tensors in host memory, for what is told of a NaN or Inf: their range, and what makes one of it.

What the optimizer knows of parameters that are bad, or of those beside a bad output.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rangewatch.core import limits
from rangewatch.core.guard import Guard
from rangewatch.recording.allowed_inf import AllowedInf
from rangewatch.recording.containers import leaves
from rangewatch.recording.observer import local_part, why_unobservable
from rangewatch.recording.step_buffer import POSITIONS, Block
from rangewatch.recording.tensor_names import TensorNames
from rangewatch.statistics import reduce
from rangewatch.wire.records import TensorEntry

_BRIEF = 16
"""How many times faster an element is read for its range alone (measured: 0.6 ns and 9 ns, float32)."""


class TensorDetails:
    """Reads tensors for one report, `limits.CONTEXT_ELEMENTS` elements in all.

    None for what has no range, cannot be read without waiting for a device, or would be too much.
    """

    def __init__(self) -> None:
        self._left = limits.CONTEXT_ELEMENTS

    def whole(self, name: str, tensor: Tensor) -> dict[str, Any] | None:
        """name, dtype, shape, numel, `amax` of the finite elements, counts of NaN, Inf, zeros and negative ones.

        Where there is any Inf: how many are -Inf, and `masked_rows`, rows along the last dimension that are nothing
        else.
        """
        local = self._taken(tensor, 1)
        return None if local is None else _named(name, local) | _range(local) | _special(local)

    def brief(self, name: str, tensor: Tensor) -> dict[str, Any] | None:
        """The same up to the count of Inf."""
        local = self._taken(tensor, _BRIEF)
        return None if local is None else _named(name, local) | _range(local)

    def _taken(self, tensor: Tensor, speed: int) -> Tensor | None:
        local = local_part(tensor.detach())
        if why_unobservable(local) is not None or not local.is_cpu or local.numel() > self._left * speed:
            return None
        self._left -= local.numel() // speed
        return local.as_subclass(Tensor)


def _named(name: str, tensor: Tensor) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {
        "name": name[: limits.NAME_CHARACTERS], "dtype": dtype, "shape": list(tensor.shape), "numel": tensor.numel(),
    }  # fmt: skip


@torch.no_grad()
def _range(tensor: Tensor) -> dict[str, Any]:
    amax, nan_count, inf_count = reduce.amax_of_blocks(tensor), 0, 0
    if not amax < float("inf"):
        amax, nan_count, inf_count = reduce.count_nonfinite(tensor)
    return {"amax": amax, "nan_count": nan_count, "inf_count": inf_count}


@torch.no_grad()
def _special(tensor: Tensor) -> dict[str, Any]:
    zeros = negative = 0
    for block in reduce.blocks(tensor):
        zeros += int(np.count_nonzero((block == 0).numpy()))
        negative += int(np.count_nonzero((block < 0).numpy()))
    found = {"zero_count": zeros, "negative_count": negative}
    if tensor.dtype.itemsize == 1 or not tensor.dim():  # float8 has no comparison
        return found
    masked = tensor == float("-inf")
    if masked.any():
        found |= {"negative_inf_count": int(masked.sum()), "masked_rows": int(masked.all(-1).sum())}
    return found


_SETTINGS = ("lr", "eps", "weight_decay", "momentum", "amsgrad")

Facts = Callable[[str, Tensor], dict[str, Any] | None]


def optimizer_facts(
    optimizers: Sequence[Any], parameters: Sequence[tuple[str, nn.Parameter | None]], facts: Facts
) -> dict[str, Any]:
    """`optimizer`: class, settings and the state's tensors of the first of `parameters` that one has.

    Empty where none has any. `facts(name, tensor)` is None for what is not told.
    """
    for name, parameter in parameters[: limits.CONTEXT_TENSORS]:
        for optimizer in optimizers:
            group = None if parameter is None else _group_of(optimizer, parameter)
            if group is not None:
                settings = {each: number for each in _SETTINGS if (number := _number(group.get(each))) is not None}
                state = getattr(optimizer, "state", {}).get(parameter, {})
                tensors = ((key, value) for key, value in state.items() if isinstance(value, Tensor) and value.dim())
                reported = [known for key, value in tensors if (known := facts(str(key), value)) is not None]
                return {
                    "optimizer": {"class": type(optimizer).__name__, "parameter": name, **settings, "state": reported}
                }
    return {}


def _group_of(optimizer: Any, parameter: nn.Parameter) -> dict[str, Any] | None:
    groups = getattr(optimizer, "param_groups", ())
    return next((group for group in groups if any(each is parameter for each in group["params"])), None)


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return float(value) if value.is_cpu and value.numel() == 1 else None
    return float(value) if isinstance(value, (int, float)) else None


_TOLD = ("output", "weight", "update")

_CALL: Any = getattr(getattr(nn.Module, "_call_impl", None), "__code__", None)


class NonfiniteContext:
    """Tells of each spell of steps with NaN or Inf the first output, weight or update that held it, and of others that
    come later for the first time: event `nonfinite`, docs/wire.md.
    """

    def __init__(
        self,
        names: TensorNames,
        guard: Guard,
        allow_inf: tuple[str, ...],
        fqns: WeakKeyDictionary[nn.Module, str],
        optimizers: Sequence[Any],
    ) -> None:
        self._names, self._guard, self._fqns = names, guard, fqns
        self._allowed = AllowedInf(allow_inf, names)
        self._optimizers = [ref(each) for each in optimizers]  # DeepSpeed's hold their model
        self.open_step: Callable[[], int] = lambda: 0
        self.emit: Callable[[str, str, dict[str, Any]], None] = lambda kind, message, data: None
        self._spell_step = self._told_step = self._last_device_step = -2
        self._known: set[int] = set()
        """Tensors that have been bad in this spell: what is meant to be Inf, and what it has reached."""
        self._reported = self._told_in_spell = 0
        self.wants_weights = False
        """An accelerator held a NaN or Inf: whether weights are finite is to be looked at when the next step opens."""

    def seen(self, number: int, nan_count: int) -> None:
        """A tensor of this number, in host memory, holds `nan_count` NaN, or Inf alone."""
        entry, step = self._names.entries[number], self.open_step()
        if entry.kind not in _TOLD or (not nan_count and self._is_allowed(number)):
            return
        if step > self._spell_step + 1:
            self._known.clear()
            self._told_in_spell = 0
        self._spell_step = step
        is_new = number not in self._known and step != self._told_step
        self._known.add(number)
        if is_new and self._told_in_spell < limits.NONFINITE_TOLD_IN_SPELL and self._reported < limits.NONFINITE_TOLD:
            self._reported, self._told_in_spell, self._told_step = self._reported + 1, self._told_in_spell + 1, step
            self._guard.run("context of NaN or Inf", lambda: self.emit("nonfinite", "", self._context(entry)))

    def look_at(self, block: Block) -> None:
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
            if is_new and self._reported < limits.NONFINITE_TOLD:
                self._reported += 1
                self.wants_weights = True

    def _is_allowed(self, number: int) -> bool:
        return bool(self._allowed.numbers(number + 1)[number])

    def _context(self, entry: TensorEntry) -> dict[str, Any]:
        data: dict[str, Any] = {"fqn": entry.fqn, "kind": entry.kind, "index": entry.index, "autocast": _autocast()}
        facts = TensorDetails()
        if entry.kind == "output":
            data |= self._of_output(entry.fqn, facts)
            names = [each["name"] for each in data.get("weights", ())]
            bad = [each["name"] for each in data.get("weights", ()) if each["nan_count"] or each["inf_count"]]
        else:
            names, bad = [entry.fqn], []
        parameters = [(name, self._parameter(name)) for name in bad or names[:1]]
        return data | optimizer_facts([each() for each in self._optimizers], parameters, facts.whole)

    def _of_output(self, fqn: str, facts: TensorDetails) -> dict[str, Any]:
        data: dict[str, Any] = {}
        if (call := _call_of(self._module(""))) is not None:
            data["model_inputs"] = _inputs(*call, facts)
        module = self._module(fqn)
        if module is None:  # a watched value of a name of its own
            return data
        if (call := _call_of(module)) is not None:
            data["inputs"] = _inputs(*call, facts)
        for name in ("eps", "variance_epsilon"):
            if isinstance(value := getattr(module, name, None), float):
                data["eps"] = value
        prefix = f"{fqn}." if fqn else ""
        weights = ((prefix + name, each) for name, each in _parameters(module) if not is_lazy(each))
        return data | {"weights": [reported for weight in weights if (reported := facts.brief(*weight)) is not None]}

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
            found = frame.f_locals
            return found["args"], found["kwargs"]
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _is_of(called: Any, module: nn.Module) -> bool:
    return called is module or getattr(called, "_orig_mod", None) is module  # what torch.compile gives is called


def _inputs(args: tuple[Any, ...], kwargs: dict[str, Any], facts: TensorDetails) -> list[dict[str, Any]]:
    named = ((f"input[{place}]", each) for place, each in enumerate(args))
    found: list[dict[str, Any]] = []
    for name, value in (*named, *kwargs.items()):
        tensors = [each for each in leaves(value) if isinstance(each, Tensor)]
        for place, tensor in enumerate(tensors):
            reported = facts.whole(name if len(tensors) == 1 else f"{name}[{place}]", tensor)
            if reported is not None and len(found) < limits.CONTEXT_TENSORS:
                found.append(reported)
    return found


def _parameters(module: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    """Its own first; those of the modules in it too, which it may use without calling them."""
    return islice(_by_depth(module), limits.CONTEXT_TENSORS)


def _by_depth(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    yield from module.named_parameters(recurse=False)
    yield from ((name, each) for name, each in module.named_parameters() if "." in name)
