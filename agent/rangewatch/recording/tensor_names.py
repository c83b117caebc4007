"""What tensors are called: clean names of modules, places in what a module returns, and numbers in the catalogue.

`CallOrder` says where a new tensor belongs among those that are known, in the order in which a step uses them.
"""

from __future__ import annotations

import dataclasses
import itertools
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rangewatch.core import limits
from rangewatch.recording.rows.mirror import Mirror
from rangewatch.statistics import sparse
from rangewatch.wire.records import Catalogue, TensorEntry

# Names by which wrappers hold the module they wrap. The underscored ones are used by nobody else; `module` is a name
# that people give their own children too, so it is a wrapper's only under these classes.
_WRAPPED = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_MODULE_WRAPPERS = {"DistributedDataParallel", "DataParallel", "DeepSpeedEngine", "DistributedDataParallelCPU"}


def is_container(module: nn.Module) -> bool:
    """Whether it has no forward of its own, as a `ModuleList`. The class of a ScriptModule raises where it is asked."""
    return getattr(type(module), "forward", None) is nn.Module.forward


def clean_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Each module once by its clean name, the root's being "". Wrappers are left out: what they wrap has the name."""
    return dict(_named(model))  # what is wrapped comes after its wrapper, and takes its place


def clean_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Each parameter once with its clean name."""
    seen: set[int] = set()
    for fqn, module in _named(model):
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{fqn}.{name}" if fqn else name, parameter


def parameter_names(model: nn.Module) -> list[list[str]]:
    """The clean names of each parameter: several where modules share it, or its memory, as after
    `load_state_dict(..., assign=True)`, which makes a parameter of each name."""
    names: dict[tuple[int, ...], list[str]] = {}
    for fqn, module in _named(model):
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            names.setdefault(_identity(parameter), []).append(f"{fqn}.{name}" if fqn else name)
    return list(names.values())


def _identity(parameter: nn.Parameter) -> tuple[int, ...]:
    is_plain = type(parameter) is nn.Parameter and parameter.layout is torch.strided and parameter.numel()
    is_plain = is_plain and 0 not in parameter.stride()  # one number for all its elements holds a place for others
    at = parameter.data_ptr() if is_plain and parameter.device.type in ("cpu", "cuda") else 0
    return (at, *parameter.shape, *parameter.stride()) if at else (id(parameter),)


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    names: dict[str, str] = {}
    modules: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        parent_path, _, attribute = path.rpartition(".")
        modules[path], names[path] = module, attribute
        if path:
            parent = names[parent_path]
            has_its_name = is_wrapped(modules[parent_path], attribute)
            names[path] = parent if has_its_name else f"{parent}.{attribute}" if parent else attribute
        yield names[path], module


def is_wrapped(parent: nn.Module, attribute: str) -> bool:
    """Whether that child has the name of `parent`, its wrapper."""
    if attribute in _WRAPPED:
        return True
    return attribute == "module" and any(base.__name__ in _MODULE_WRAPPERS for base in type(parent).__mro__)


_is_compiling = torch.compiler.is_dynamo_compiling


class Bounds(NamedTuple):
    """What is left of the visits and of the tensors."""

    visits: Iterator[bool]
    tensors: Iterator[bool]


def leaves(value: Any) -> list[Any]:
    """What nested tuples, lists, mappings and dataclasses (such as Transformers' ModelOutput) hold, in order.

    A tensor's position in this list is its `index`. At most `FLATTEN_TENSORS` (of `limits`) tensors, to `FLATTEN_DEPTH`
    levels, among the first `CONTAINER_VISITS` objects; a container that comes again is looked into once (in eager
    mode).
    """
    if isinstance(value, Tensor):
        return [value]
    values: list[Any] = []
    _collect(
        value,
        values,
        {},
        Bounds(itertools.repeat(True, limits.CONTAINER_VISITS), itertools.repeat(True, limits.FLATTEN_TENSORS)),
        0,
    )
    return values


def _collect(value: Any, values: list[Any], seen: dict[int, Any], bounds: Bounds, depth: int) -> None:
    if isinstance(value, Tensor):
        if next(bounds.tensors, False):
            values.append(value)
        return
    if depth == limits.FLATTEN_DEPTH or not _is_container(value):
        values.append(value)
        return
    if not _is_compiling():  # the compiler would guard on the identity, and compile again at each call
        if id(value) in seen:
            return
        seen[id(value)] = value  # held, lest its id is given to a container that is made on the way
    for child, _ in zip(_children(value), bounds.visits, strict=False):
        _collect(child, values, seen, bounds, depth + 1)


def _is_container(value: Any) -> bool:
    if isinstance(value, (tuple, list, Mapping)):
        return True
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        return iter(value)
    if isinstance(value, Mapping):
        return iter(value.values())
    return (getattr(value, field.name, None) for field in dataclasses.fields(value))


class TensorNames:
    """The catalogue of one rank while it grows: (fqn, kind, index, dtype) -> number. Entries are never changed.

    `mirror` hears of each that joins. `histograms`: its statistics have the bins of exponents; `sketched`: sketches.
    """

    def __init__(self, mirror: Mirror | None = None, *, histograms: bool = False, sketched: bool = False) -> None:
        self._mirror, self._histograms, self._sketched = mirror, histograms, sketched
        self._statistics = sparse.of_catalogue(histograms=histograms, sketched=sketched)
        self.entries: list[TensorEntry] = []
        self._numbers: dict[tuple[str, str, int, str], int] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def count_experts(self, most: int) -> None:
        """Its statistics have the tokens of so many experts too. Before anything is shipped."""
        self._statistics = sparse.of_catalogue(histograms=self._histograms, sketched=self._sketched, most_experts=most)

    def find(self, fqn: str, kind: str, index: int, dtype: str) -> int | None:
        """The number of this tensor; None when it is new."""
        return self._numbers.get((fqn, kind, index, dtype))

    def add(self, entry: TensorEntry) -> int:
        """The number of a new tensor, which joins the catalogue."""
        number = self._numbers[entry.fqn, entry.kind, entry.index, entry.dtype] = len(self.entries)
        self.entries.append(entry)
        if self._mirror is not None:
            self._mirror.tensor(number, entry)
        return number

    def catalogue(self, count: int) -> Catalogue:
        """The catalogue as it was when it had `count` tensors."""
        return Catalogue(self._statistics, tuple(self.entries[:count]))


Place = tuple[int, int]
"""Call index and number: what readers sort by."""

_FRONT: Place = (-1, -1)


class CallOrder:
    """Gives call indices with gaps, so that a tensor that first shows late comes after the one read before it.

    A pass is a run of outputs (a forward) or of gradients (a backward): in a second microbatch the one read before is
    the furthest of this pass. The furthest, not the last: a ReLU that is used everywhere says nothing of where we are.
    """

    def __init__(self) -> None:
        self._passed: deque[int] = deque(maxlen=limits.SEEN_TENSORS)
        self.passed = self._passed.append
        """Say that the tensor of this number is being read: the hot path calls the deque's own method."""
        self._places: list[Place] = []
        self._ordered: list[Place] = []
        self._is_forward: list[bool] = []
        self._last_weight = _FRONT
        self.begin_step()

    def begin_step(self) -> None:
        """Nothing is read yet in the open step."""
        self._passed.clear()
        self._furthest = self._step_furthest = _FRONT
        self._in_forward = True

    def add(self, kind: str) -> int:
        """The call index of the next number, a tensor of `kind` that is about to be read for the first time."""
        while self._passed:
            number = self._passed.popleft()
            self._go_on(self._places[number], is_forward=self._is_forward[number])
        is_forward = kind in {"weight", "input", "output", "scaled_input", "scaled_weight"}
        self._enter(is_forward)
        is_weight = kind == "weight"  # there before the forward, whenever it is read
        place = self._after(self._last_weight if is_weight else self._before()), len(self._places)
        if is_weight:
            self._last_weight = place
        self._places.append(place)
        self._is_forward.append(is_forward)
        insort(self._ordered, place)
        return place[0]

    def _go_on(self, place: Place, *, is_forward: bool) -> None:
        self._enter(is_forward)
        self._furthest = max(self._furthest, place)
        self._step_furthest = max(self._step_furthest, place)

    def _enter(self, is_forward: bool) -> None:
        if is_forward is not self._in_forward:
            self._in_forward = is_forward
            self._furthest = _FRONT

    def _before(self) -> Place:
        return self._step_furthest if self._furthest == _FRONT else self._furthest

    def _after(self, before: Place) -> int:
        position = bisect_right(self._ordered, before)
        if position == len(self._ordered):
            return max(before[0], 0) + limits.CALL_INDEX_GAP
        gap = self._ordered[position][0] - before[0]
        # An eighth, so that a branch of 40 modules still fits; then equal indices, which the higher number puts behind.
        return max(before[0] + (max(gap // 8, 1) if gap > 1 else 0), 0)
