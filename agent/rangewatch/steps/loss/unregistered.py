"""Event `unregistered`: the loss depends on parameters that the model does not hold and that nothing trains, such as
those of layers in a plain list, of a head beside the model, or of a layer that each forward makes anew.

Known by the leaves of the loss's graph. Looked at are `LOOKS`, of each the first `MOST_NODES` operations: 0.2 ms of
454, 2.4 to 4.7 ms of 4,096 (torch 2.13, CPU), and 4.4 to 8.8 ms more where 256 leaves are unknown. Parameters that stay
are reported where nothing moved them meanwhile: they were written as seldom as by an initialisation, their memory,
version and a sample of values stay, their gradient is there and nobody clears it, and no optimizer of the process has
them. For that the garbage collector's objects are gone through, once a run and only where all else is so: 40 ms as a
rule, 130 ms of a million. Modules in `eval()` are meant to stay.

Nothing is said of FSDP and DTensor, whose leaves are other objects than the model's. No parameter is kept alive.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn

from rangewatch.core import limits
from rangewatch.hooks.optimizers.in_use import OptimizersInUse, parameters_held
from rangewatch.recording.events import Events, sendable
from rangewatch.recording.logged_values import LoggedValues
from rangewatch.recording.observer import is_being_captured
from rangewatch.recording.tensor_names import clean_modules
from rangewatch.steps.loss.graph_nodes import node_name
from rangewatch.wire.events import Unregistered

SERIES = "unregistered_moved"

LOOKS = (2, 6, 10, 14, 18)
"""Steps since the first backward. What has not moved in sixteen is not a part that is trained at every few steps."""

MOST_NODES, MOST_WALKS, A_STEP = 4_096, 24, 4
"""Operations of a graph, the nearest to the loss; graphs in all; and graphs of a step, as of several losses."""

MOST_LEAVES, MOST_NAMED = 256, 16

FEWEST_WRITES, DRAWN = 8, (1, 2)
"""Writes to a parameter by which it has been initialised, copied and loaded. One with more was trained before. And
those of one that was just drawn: a copy that no inner step has moved has none, and one of several steps has more.
"""

SAMPLE = 64
"""Elements of a parameter that are compared: a hand-written update may leave its version as it is, as by `.data`."""

MOST_OBJECTS, MOST_DEPTH = 4_096, 3
"""In plain attributes of modules that are looked through, and how deep lists may lie in one another."""

FRESH = (0.9, 1.001)
"""The largest magnitude over 1 / sqrt(fan_in), which torch's own layers draw from and come near to."""

MOST_READ = 1 << 22
"""Elements of a matrix of which the largest is read, 1 ms or so: it says whether it is as torch draws it."""

_NOTHING = torch.empty(0)

_MRO = type.__dict__["__mro__"].__get__
"""The bases of a class, as torch and Python know them: a metaclass may say something else."""

_UNARY = 8
"""Operations on a parameter alone, such as its transpose, before the one that uses it."""

_OF_LAYER = re.compile(
    r"(Addmm|Convolution|ConvolutionOverrideable|NativeLayerNorm|Linear|MkldnnConvolution)Backward\d"
)
_SHARDED = frozenset(("FSDPModule", "FullyShardedDataParallel"))
_OWN = frozenset(vars(nn.Module()))
"""What torch itself keeps in each module."""


class _Leaf(NamedTuple):
    """`is_layer`: it and a bias are used by one operation. `is_serial`: the gradient of the model goes through what it
    is used by, or the other way round."""

    parameter: ref[nn.Parameter]
    shape: tuple[int, ...]
    version: int
    address: int
    sample: Tensor
    is_layer: bool
    is_serial: bool
    had_gradient: bool


class UnregisteredParameters:
    """Called with what each backward of the process begins with, by the training thread."""

    def __init__(self, events: Events, values: LoggedValues, model: nn.Module, optimizers: OptimizersInUse) -> None:
        self._events, self._values, self._model, self._optimizers = events, values, ref(model), optimizers
        self._first = self._step = -1
        self._at, self._left, self._of_step = 0, MOST_WALKS, 0
        self._has_met = False
        self._found: dict[int, _Leaf] = {}
        self._stayed: dict[int, _Leaf] | None = None
        self._are_anew = True
        """Each look so far had layers that were gone one step later."""

    def began(self, loss: Any, step: int) -> None:
        """A backward begins at `loss`."""
        if not self._left or not isinstance(loss, Tensor) or loss.grad_fn is None:
            return
        if self._first < 0:
            self._first = step
        if step != self._step:
            self._step, self._of_step = step, 0
            self._end_look()
        if self._left and self._of_step < A_STEP and step - self._first >= LOOKS[self._at]:
            self._left, self._of_step = self._left - 1, self._of_step + 1
            self._look(loss)

    def _look(self, loss: Tensor) -> None:
        model = self._model()
        if model is None or _is_sharded(model) or is_being_captured(loss):
            self._left = 0
            return
        own = {id(each) for each in model.parameters()}
        graph = _Graph(loss.grad_fn)
        mine = [each for each in graph.leaves if id(each.variable) in own]
        if not mine:
            return
        self._has_met = True
        held = frozenset[int]().union(*map(parameters_held, self._optimizers.every()))
        unknown = [each for each in graph.leaves if type(each.variable) is nn.Parameter]
        unknown = [each for each in unknown if id(each.variable) not in held][:MOST_LEAVES]
        if not unknown:
            return
        others = [each for each in unknown if id(each.variable) not in own]
        below, behind = graph.above(mine), graph.above(others)
        is_front = bool(others) and any(graph.is_used_with(each, behind) for each in mine)
        for node in unknown:
            leaf: nn.Parameter = node.variable
            is_plain = leaf.layout is torch.strided and leaf.device.type != "meta"
            if is_plain and not getattr(leaf, "_is_flat_param", False):  # FSDP1's
                self._found[id(leaf)] = _Leaf(
                    ref(leaf), tuple(leaf.shape), leaf._version, leaf.data_ptr(),
                    _NOTHING if id(leaf) in own else _sample(leaf),
                    graph.is_layer(node), is_front or graph.is_used_with(node, below), leaf.grad is not None,
                )  # fmt: skip

    def _end_look(self) -> None:
        """The step after the one that was looked at: its gradients are there still, where nobody clears them."""
        found, self._found = self._found, {}
        has_met, self._has_met = self._has_met, False
        model = self._model()
        if not has_met or model is None:
            return
        gone = [each for each in found.values() if each.parameter() is None and not each.had_gradient]
        layers = [each for each in gone if each.is_layer and each.version in DRAWN]
        self._are_anew = self._are_anew and bool(layers)
        own = {id(each) for each in model.parameters()}
        known = found if self._stayed is None else {key: each for key, each in self._stayed.items() if key in found}
        self._stayed = {key: each for key, each in known.items() if key not in own and _stays(each)}
        self._at += 1
        if not self._stayed and not self._are_anew:
            self._left = 0
        elif self._at == len(LOOKS):
            self._left = 0
            self._report(model, layers)

    def _report(self, model: nn.Module, layers: list[_Leaf]) -> None:
        if self._are_anew:
            shapes = tuple(each.shape for each in layers[:MOST_NAMED])
            elements = sum(_size(each.shape) for each in layers)
            self._events.add(Unregistered((), shapes, len(layers), elements, self._first, is_anew=True))
            return
        stayed = {key: each for key, each in (self._stayed or {}).items() if not each.sample.is_cpu or _keeps(each)}
        known = _owners(stayed, model) if stayed else ({}, frozenset[int]())
        if known is None:
            return
        owners, held = known
        stayed = {key: each for key, each in stayed.items() if key not in held}
        trained = {key for key in stayed if key not in owners or any(each.training for each, _ in owners[key])}
        places, hidden = _places(model, trained)
        inside = {key: each for key, each in stayed.items() if key in places and key not in hidden}
        outside = {key: each for key, each in stayed.items() if key in trained & owners.keys() and each.is_serial}
        chosen = inside or {key: each for key, each in outside.items() if key not in hidden}
        if not chosen:
            return
        chosen = dict(reversed(chosen.items()))  # a graph is gone through from the loss
        names = [places[key].name if key in places else _owned(*owners[key][0]) for key in chosen]
        on_device = [each for each in chosen.values() if not each.sample.is_cpu]
        if len({each.sample.device for each in on_device}) > 1:
            return  # one number is recorded of them, and nothing waits for a device
        if on_device:
            self._values.record(SERIES, self._step, _moved(on_device))
        self._events.add(
            Unregistered(
                tuple(sendable(each)[: limits.NAME_CHARACTERS] for each in names[:MOST_NAMED]),
                tuple(each.shape for each in list(chosen.values())[:MOST_NAMED]),
                len(chosen),
                sum(_size(each.shape) for each in chosen.values()),
                self._first,
                is_inside=bool(inside),
                is_alone=bool(inside) and all(places[key].is_alone for key in inside),
                is_serial=all(each.is_serial for each in chosen.values()),
                is_fresh=_is_fresh(chosen.values()),
                is_on_device=bool(on_device),
            )
        )


class _Graph:
    """Of one loss: its leaves, and which operations use what."""

    def __init__(self, root: Any) -> None:
        self.leaves: list[Any] = []
        self._users: dict[Any, list[Any]] = {root: []}
        waiting = [root]
        for node in waiting:  # which grows
            for child, _ in node.next_functions:
                if child is None:
                    continue
                users = self._users.get(child)
                if users is not None:
                    users.append(node)
                elif len(self._users) < MOST_NODES:
                    self._users[child] = [node]
                    waiting.append(child)
                    if node_name(child) == "AccumulateGrad":
                        self.leaves.append(child)

    def above(self, leaves: Iterable[Any]) -> set[Any]:
        """All operations that depend on one of these."""
        waiting = list(leaves)
        found = set(waiting)
        for node in waiting:
            new = [each for each in self._users[node] if each not in found]
            found.update(new)
            waiting += new
        return found

    def is_used_with(self, leaf: Any, others: set[Any]) -> bool:
        """Whether the first operation on it and on something else is given any of `others`."""
        return any(
            other in others and node_name(other) != "AccumulateGrad"
            for user, of in self._uses(leaf)
            for other, _ in user.next_functions
            if other is not None and other is not of
        )

    def is_layer(self, leaf: Any) -> bool:
        """Whether it is the matrix, or the kernel, of operations that have a bias as large as its first dimension, and
        nothing else: inner steps of meta-learning subtract from it."""
        shape = leaf.variable.shape
        users = [user for user, _ in self._uses(leaf)]
        biases = {
            tuple(other.variable.shape)
            for user in users
            for other, _ in user.next_functions
            if other is not None and other is not leaf and node_name(other) == "AccumulateGrad"
        }
        is_used_so = all(_OF_LAYER.fullmatch(node_name(each)) for each in users)
        return len(shape) > 1 and is_used_so and (shape[0],) in biases

    def _uses(self, leaf: Any) -> Iterator[tuple[Any, Any]]:
        """Operations on it and something else, each with what it is given of it."""
        waiting = [leaf]
        for _, node in zip(range(_UNARY), waiting, strict=False):  # which grows
            for user in self._users[node]:
                if len([each for each, _ in user.next_functions if each is not None]) > 1:
                    yield user, node
                else:
                    waiting.append(user)


def _is_sharded(model: nn.Module) -> bool:
    if any(hasattr(each, "to_local") for each in model.parameters()):
        return True
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    return any(kind.__name__ in _SHARDED for kind in kinds)


def _sample(parameter: Tensor) -> Tensor:
    flat = parameter.detach().flatten() if parameter.is_contiguous() else parameter.detach()[:1].flatten()
    return flat[:: max(1, flat.numel() // SAMPLE)][:SAMPLE].clone()


def _stays(leaf: _Leaf) -> bool:
    """Whether it is there, has a gradient and nobody has written to it, as far as its version says."""
    known = leaf.parameter()
    if known is None or known.grad is None or leaf.version > FEWEST_WRITES:
        return False
    return known._version == leaf.version and known.data_ptr() == leaf.address and known.requires_grad


def _keeps(leaf: _Leaf) -> bool:
    """Whether its values are those of before, too, of one in host memory."""
    known = leaf.parameter()
    return known is not None and torch.equal(_sample(known), leaf.sample)


def _moved(leaves: Iterable[_Leaf]) -> Tensor:
    """1 where any value on an accelerator is another one than before; nothing waits for it."""
    pairs = [(known, each) for each in leaves if (known := each.parameter()) is not None]
    changed = [(_sample(known) != each.sample).any() for known, each in pairs]
    return torch.stack(changed).any().float() if changed else torch.ones(())


def _owners(
    wanted: Mapping[int, Any], model: nn.Module
) -> tuple[dict[int, list[tuple[nn.Module, str]]], frozenset[int]] | None:
    """By `id` of a parameter the modules that have it and its name there, and all that any optimizer has. Nothing is
    asked of an object but its type: a proxy may make anything of what it is asked. None where not even `model` is
    among the objects, as after gc.freeze(): then nobody knows who has what."""
    kinds: dict[type, int] = {}
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    held: set[int] = set()
    is_complete = False
    for each in gc.get_objects():
        is_complete = is_complete or each is model
        kind = kinds.get(type(each))
        if kind is None:
            bases = _MRO(type(each))
            kind = kinds[type(each)] = 1 if nn.Module in bases else 2 if torch.optim.Optimizer in bases else 0
        if kind == 1:
            for name, parameter in (each.__dict__.get("_parameters") or {}).items():
                if id(parameter) in wanted:
                    owners.setdefault(id(parameter), []).append((each, name))
        elif kind == 2:
            held |= parameters_held(each)
    return (owners, frozenset(held)) if is_complete else None


class _Place(NamedTuple):
    """`is_alone`: the list, or whatever holds it, holds no other module or tensor."""

    name: str
    is_alone: bool


def _places(model: nn.Module, wanted: Iterable[int]) -> tuple[dict[int, _Place], set[int]]:
    """By `id` of a parameter where it lies in the plain attributes of the model's modules; and those of a module that
    is an attribute itself, which torch would have registered: it was hidden on purpose."""
    wanted, hidden, left = set(wanted), set[int](), MOST_OBJECTS
    places: dict[int, _Place] = {}
    if not wanted:
        return places, hidden
    for fqn, module in clean_modules(model).items():
        for name, value in list(vars(module).items()):
            if name in _OWN:
                continue
            if isinstance(value, nn.Module):
                hidden |= {id(each) for each in value.parameters()} & wanted
            if type(value) not in (list, tuple, dict):
                continue
            waiting = [(f"{fqn}.{name}" if fqn else name, value, 0)]
            for path, container, depth in waiting:
                if left <= 0:
                    break
                # A copy: another thread may write to it. Of a buffer of millions no more than that.
                every = container.items() if isinstance(container, dict) else enumerate(container)
                pairs = list(islice(every, left))
                parts = [each for _, each in pairs if isinstance(each, (nn.Module, Tensor))]
                for key, item in pairs:
                    left -= 1
                    at = f"{path}[{key!r}]" if isinstance(key, (str, int)) else f"{path}[...]"
                    if isinstance(item, nn.Module):
                        inner = {id(each): f"{at}.{own}" for own, each in item.named_parameters()}
                    else:
                        inner = {id(item): at}
                    for found in inner.keys() & wanted:
                        places.setdefault(found, _Place(inner[found], len(parts) == 1))
                    if type(item) in (list, tuple, dict) and depth < MOST_DEPTH:
                        waiting.append((at, item, depth + 1))
    return places, hidden


def _owned(module: nn.Module, name: str) -> str:
    return f"{type(module).__name__}.{name}"


def _is_fresh(leaves: Iterable[_Leaf]) -> bool:
    """Whether the matrices are as torch's own layers draw them; not known of those on an accelerator, which would have
    to be waited for, and False then."""
    known = [parameter for each in leaves if (parameter := each.parameter()) is not None and parameter.dim() > 1]
    ratios = [
        max(map(abs, torch.stack(each.detach().aminmax()).tolist())) * (each[0].numel() ** 0.5)
        for each in known[:MOST_NAMED]
        if each.is_cpu and SAMPLE < each.numel() <= MOST_READ
    ]  # fmt: skip
    return bool(ratios) and all(FRESH[0] < each < FRESH[1] for each in ratios)


def _size(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
