"""How each parameter lies on the mesh, and along which axes all ranks must hold the same bits of it.

A DTensor says so itself, and DistributedDataParallel of what it wraps. Megatron marks its sharded parameters, and its
own wrapper reduces over the data-parallel ranks. Of other plain tensors it is not known, but where
`attach(replicated=...)` says so, or the loop reduces their gradients itself: better none than one that may differ for a
good reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet, ref

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rangewatch.core import limits
from rangewatch.recording.events import sendable
from rangewatch.recording.observer import why_unobservable
from rangewatch.recording.parallel.axes import Axes, Sizes, axis_ranks, find_axes
from rangewatch.recording.parallel.reduced_by_hand import ReducedByHand, Reduction
from rangewatch.recording.tensor_names import clean_parameters
from rangewatch.wire.events import Placement, Placements

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks."
_NOT_REDUCING = {"noop_hook", "post_localSGD_hook"}

IN_NO_SYNC = "the update is made inside no_sync()"
NOT_REDUCED = "the update is made without gradient synchronisation"

REPLICATE, PARTIAL = "replicate", "partial"
FLAT = "shard(flat)"
"""FSDP1 cuts all parameters of a module in one row of elements, wherever that is."""


class Placed(NamedTuple):
    """A parameter, which is not kept alive. `axes`: axis -> placement, of those that are known; `alike`: along which
    all ranks hold the same; `by`: what sees to that, a DistributedDataParallel, an FSDPModule or the loop itself, None
    where nothing is known to interrupt it."""

    fqn: str
    parameter: ref[nn.Parameter]
    axes: Mapping[str, str]
    alike: tuple[str, ...]
    by: ref[Any] | None


class Layout:
    """Of one model, as it is now. `replicated`: True, or the axes along which the user says that all is alike."""

    def __init__(self, model: nn.Module, mesh: Sizes, replicated: bool | tuple[str, ...], rank: int) -> None:
        self._model, self._mesh, self.replicated, self._rank = ref(inside_wrapper(model)), mesh, replicated, rank
        self.wrappers: WeakSet[DistributedDataParallel] = WeakSet()
        if isinstance(model, DistributedDataParallel):
            self.wrappers.add(model)
        self._reduced: dict[int, tuple[ref[nn.Parameter], tuple[int, ...]]] = {}
        """`id` of a parameter that was in a wrapper -> itself, and the ranks that reduce its gradient. A wrapper may be
        let go of by mistake, as with `model = accelerator.unwrap_model(model)`: then nobody reduces it any more."""
        self.by_hand = ReducedByHand()
        self.axes = Axes(rank)
        self._names: dict[int, tuple[Any, list[str | None]]] = {}
        """`id` of a device mesh -> the mesh, and the axes that its dimensions are."""

    @property
    def world_size(self) -> int:
        """Of torch.distributed, 1 without."""
        return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1

    @property
    def is_known(self) -> bool:
        """Whether there are other ranks, or a mesh is declared."""
        return self.world_size > 1 or bool(self._mesh)

    def own_hook(self) -> str:
        """The first of the wrappers' communication hooks that is the user's; "" where none is."""
        return next((name for wrapper in self.wrappers if (name := own_hook(wrapper))), "")

    def find_reduced_by_hand(self) -> None:
        """Find which parameters the loop has just reduced itself. Right before their update."""
        model = self._model()
        if model is not None:
            self.by_hand.find(
                parameter for _, parameter in clean_parameters(model) if not hasattr(parameter, "placements")
            )

    def find_wrappers(self) -> None:
        """Find what wraps the model, or parts of it. Inside a forward: a wrapper may be beyond the model."""
        model, active = self._model(), getattr(DistributedDataParallel, "_active_ddp_module", None)
        if model is not None:
            inside = (module for module in model.modules() if isinstance(module, DistributedDataParallel))
            self.wrappers.update(inside)
            if active is not None and any(module is model for module in active.modules()):
                self.wrappers.add(active)

    def parameters(self) -> list[Placed]:
        """All, in an order that is the same on all ranks that hold the same ones; `axes` are found anew."""
        model = self._model()
        if model is None:
            return []
        for wrapper in self.wrappers:
            ranks = tuple(dist.get_process_group_ranks(wrapper.process_group))
            self._reduced |= {id(each): (ref(each), ranks) for each in _not_ignored(wrapper)}
        self._reduced = {at: each for at, each in self._reduced.items() if each[0]() is not None}
        groups = dict.fromkeys(ranks for _, ranks in self._reduced.values())
        self.axes = find_axes(model, self._mesh, self._rank, groups)
        self._names.clear()
        return list(self._placed(model))

    def _placed(self, model: nn.Module) -> Iterator[Placed]:
        kinds = {base.__name__ for module in model.modules() for base in type(module).__mro__}
        wrapped = {id(each): wrapper for wrapper in self.wrappers for each in _not_ignored(wrapper)}
        is_flat = "FullyShardedDataParallel" in kinds  # its parameters are parts of one that nobody has whole
        flat = _of_flat(model) if is_flat else {}
        sharding = _fsdp_modules(model) if "FSDPModule" in kinds else {}
        megatron = _megatron_axes(model, self.axes)
        is_marked = "tp" in self.axes.axes and any(map(_is_marked, model.parameters()))
        for fqn, parameter in clean_parameters(model):
            axes: dict[str, str] = {}
            by: Any = None
            if hasattr(parameter, "placements"):
                axes, by = self._of_dtensor(parameter), sharding.get(id(parameter))
            elif id(parameter) in flat:
                axes, by = self._of_fsdp1(flat[id(parameter)]), flat[id(parameter)]
            elif not is_flat and id(parameter) in self._reduced:
                by = wrapped.get(id(parameter))
                ranks = self._reduced[id(parameter)][1]
                axes = self._along(ranks) | (_by_mark(parameter) if is_marked else {})
            elif not is_flat and megatron:
                axes = _of_megatron(parameter, megatron)
            elif not is_flat and is_marked:
                axes = _by_mark(parameter)
            if not is_flat and not (sharding and self.replicated is True):
                axes = dict.fromkeys(self._said_alike(), REPLICATE) | axes
            alike = tuple(name for name, placement in axes.items() if placement == REPLICATE)
            if not axes and not is_flat and (reduction := self.by_hand.of(parameter)) is not None:
                alike, by = (WORLD,), reduction
            if getattr(parameter, "tensor_model_parallel", False) and self.group_of(alike)[0] == self.world_size:
                alike = ()  # Megatron's mark of a shard
            yield Placed(fqn, ref(parameter), axes, alike, None if by is None else ref(by))

    def _of_fsdp1(self, module: Any) -> dict[str, str]:
        """With shard groups of one rank it shards nothing and, though it has a group to reduce over, reduces nothing:
        what it was asked to hold alike differs then."""
        shards = tuple(dist.get_process_group_ranks(module.process_group))
        between = getattr(module, "_inter_node_pg", None)
        is_whole = getattr(module.sharding_strategy, "name", "") == "NO_SHARD"
        axes = {} if (name := self.axes.name_of(shards)) is None else {name: REPLICATE if is_whole else FLAT}
        return axes | ({} if between is None else self._along(dist.get_process_group_ranks(between)))

    def _of_dtensor(self, parameter: Any) -> dict[str, str]:
        mesh = parameter.device_mesh
        if id(mesh) not in self._names:
            self._names[id(mesh)] = mesh, [self.axes.name_of(axis_ranks(mesh, dim)) for dim in range(mesh.ndim)]
        named = zip(self._names[id(mesh)][1], parameter.placements, strict=True)
        return {name: placement_text(each) for name, each in named if name is not None}

    def is_reduced(self, placed: Placed, gradient: Any) -> bool:
        """Whether a gradient must be alike as its parameter is: of a DTensor it may be a part of a sum yet."""
        axes = self._of_dtensor(gradient) if hasattr(gradient, "placements") else {}
        return all(axes.get(name, REPLICATE) == REPLICATE for name in placed.alike)

    def _along(self, ranks: Sequence[int]) -> dict[str, str]:
        name = self.axes.name_of(ranks)
        return {} if name is None else {name: REPLICATE}

    def _said_alike(self) -> tuple[str, ...]:
        if self.replicated is True:
            return (WORLD,)
        return tuple(name for name in self.replicated or () if name in self.axes.axes)

    def alone(self, placed: Iterable[Placed]) -> tuple[str, tuple[str, ...]] | None:
        """What wraps the parameters of this rank, if all that are trained are wrapped so that gradients are reduced
        over this rank alone, though there are others; and the axes of other ranks along which no parameter lies, none
        where no axis is known. None where other ranks are met along some axis that all parameters have, as stages of
        a pipeline do not."""
        trained = [(each, p) for each in placed if (p := each.parameter()) is not None and p.requires_grad]
        keepers = [None if each.by is None else each.by() for each, _ in trained]
        if self.world_size < 2 or not keepers or any(each is None or reducing_ranks(each) != 1 for each in keepers):
            return None
        if any(WORLD in each.axes for each, _ in trained):
            return None
        used = {name for each, _ in trained for name in each.axes}
        free = tuple(axis.name for axis in self.axes if axis.size > 1 and axis.name not in used)
        if not free and used:
            return None
        return _wrapper_name(keepers[0]), free

    def unwrapped(self, placed: Iterable[Placed]) -> tuple[str, ...] | None:
        """The axes of other ranks along which no parameter lies, none where no axis is known, if nothing is known that
        shards, replicates or reduces any parameter that is trained; else None."""
        trained = [each for each in placed if (p := each.parameter()) is not None and p.requires_grad]
        if self.replicated or self.wrappers or self._reduced or self.by_hand.count or not trained:
            return None
        if any(each.axes or each.alike or each.by is not None for each in trained):
            return None
        return tuple(axis.name for axis in self.axes if axis.size > 1)

    def trained(self) -> list[nn.Parameter]:
        """The parameters that require a gradient."""
        model = self._model()
        return [] if model is None else [each for each in model.parameters() if each.requires_grad]

    def group_of(self, alike: Iterable[str]) -> tuple[int, int]:
        """How many ranks hold the same along these axes, and which of them this one is."""
        if WORLD in alike:
            return self.world_size, self._rank
        size, index = 1, 0
        for name in sorted(alike):
            axis = self.axes.axes[name]
            size, index = size * axis.size, index * axis.size + axis.index
        return size, index

    def details(self, placed: Iterable[Placed]) -> Placements:
        """As they are sent."""
        groups: dict[tuple[Any, ...], int] = {}
        parameters: dict[str, int] = {}
        count = 0
        for each in placed:
            count += 1
            alike = each.alike if self.group_of(each.alike)[0] > 1 and may_be_compared(each) else ()
            axes = tuple((name, placement) for name, placement in each.axes.items() if name != WORLD)
            if count <= limits.PLACEMENTS_SENT:
                parameters[sendable(each.fqn)] = groups.setdefault((axes, alike), len(groups))
        return Placements(tuple(Placement(dict(axes), alike) for axes, alike in groups), parameters, count)


WORLD = "all ranks"
"""In place of an axis: what `replicated=True` is said of, and what the loop reduces over all ranks."""


def placement_text(placement: Any) -> str:
    """Such as "shard(0)"."""
    if placement.is_replicate():
        return REPLICATE
    if placement.is_partial():
        return PARTIAL
    return f"shard({placement.dim})" if hasattr(placement, "dim") else type(placement).__name__.lower()


def may_be_compared(placed: Placed) -> bool:
    """Whether nothing but an optimizer changes it, and this rank has its part of it in memory: of FSDP1's that part may
    be empty, and what it is alike in is said all the same, for the ranks that hold the others."""
    parameter = placed.parameter()
    if parameter is None or not parameter.requires_grad:
        return False
    return not parameter.numel() or plain_part(parameter) is not None


def plain_part(tensor: Tensor) -> Tensor | None:
    """This rank's part of a DTensor, or the tensor itself; None where its bits are not there to be read, or are a part
    of something whose other parts are not known."""
    local: Any = getattr(tensor, "_local_tensor", None) if hasattr(tensor, "placements") else tensor
    if local is None or hasattr(local, "to_local") or why_unobservable(local):
        return None
    return local if isinstance(local, Tensor) and local.numel() else None


def inside_wrapper(model: nn.Module) -> nn.Module:
    """What a DistributedDataParallel wraps, which outlives it."""
    while isinstance(model, DistributedDataParallel):
        model = model.module
    return model


def why_not(by: Any) -> str:
    """Why ranks need not be alike in what `by` keeps so, at the update of this step; "" where they must be."""
    if isinstance(by, DistributedDataParallel):
        if by._join_config.enable:
            return "join() lets ranks take unlike numbers of steps"
        if not by.require_backward_grad_sync:
            return IN_NO_SYNC
        if any(_is_torch_s(hook) and not _reduces(hook) for hook in _hooks(by)):
            return "its communication hook leaves ranks to themselves for a while"
        return ""
    if isinstance(by, Reduction):
        return by.why_not()
    if hasattr(by, "_sync_gradients"):  # FSDP1
        has_hook = getattr(by, "_comm_hook", None) is not None
        if has_hook:
            return "of its communication hook nobody knows whether it reduces"
        return "" if by._sync_gradients else IN_NO_SYNC
    try:
        is_reduced = all(each.reduce_grads and each.all_reduce_grads for each in _fsdp2_groups(by))
    except AttributeError:
        return "another release of FSDP2 does not say whether it reduces"
    return "" if is_reduced else NOT_REDUCED


def reducing_ranks(by: Any) -> int:
    """Over how many ranks `by` reduces gradients, or gathers shards; 0 where that is not known."""
    try:
        if hasattr(by, "_get_fsdp_state"):
            return max((_mesh_ranks(each.mesh_info) for each in _fsdp2_groups(by)), default=0)
        between = getattr(by, "_inter_node_pg", None)  # of FSDP1
        return dist.get_world_size(by.process_group) * (1 if between is None else dist.get_world_size(between))
    except (AttributeError, ValueError):
        return 0


def _fsdp2_groups(by: Any) -> list[Any]:
    """Those that an FSDPModule communicates its parameters in: several where parameters lie on meshes of their own, as
    experts do. Raises AttributeError for a release with other names."""
    state = by._get_fsdp_state()
    several = getattr(state, "_fsdp_param_groups", None)  # the other name raises where there are several
    groups = [state._fsdp_param_group] if several is None else list(several)
    return [each for each in groups if each is not None]


def _mesh_ranks(info: Any) -> int:
    """0 where it does not say."""
    sizes = [getattr(info, name, 0) for name in ("shard_mesh_size", "replicate_mesh_size")]
    return math.prod(each for each in sizes if each) if any(sizes) else 0


def _wrapper_name(by: Any) -> str:
    if isinstance(by, DistributedDataParallel):
        return "DistributedDataParallel"
    return "fully_shard" if hasattr(by, "_get_fsdp_state") else "FullyShardedDataParallel"


def _not_ignored(wrapper: DistributedDataParallel) -> Iterable[nn.Parameter]:
    ignored = wrapper.parameters_to_ignore
    return [each for name, each in wrapper.module.named_parameters() if name not in ignored]


def own_hook(wrapper: DistributedDataParallel) -> str:
    """The name of a communication hook of the user's, of which nobody knows whether it reduces; "" where none is."""
    return next((_name(hook) for hook in _hooks(wrapper) if not _is_torch_s(hook)), "")


def _hooks(wrapper: DistributedDataParallel) -> Iterator[Any]:
    for hook, _ in getattr(wrapper, "_comm_hooks", ()):
        while hasattr(hook, "func"):  # functools.partial
            hook = hook.func
        yield hook


def _is_torch_s(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith(_HOOKS)


def _reduces(hook: Any) -> bool:
    return getattr(hook, "__name__", "") not in _NOT_REDUCING


def _name(hook: Any) -> str:
    return f"{getattr(hook, '__module__', '')}.{getattr(hook, '__qualname__', type(hook).__qualname__)}".lstrip(".")


def _of_flat(model: nn.Module) -> dict[int, nn.Module]:
    """`id` of FSDP1's flat parameters, and of those that are parts of them -> the FSDP module that has it."""
    by: dict[int, nn.Module] = {}
    for module in model.modules():
        flat = getattr(getattr(module, "_handle", None), "flat_param", None)
        if flat is not None and hasattr(module, "process_group"):
            by |= {id(each): module for each in (flat, *(getattr(flat, "_params", None) or ()))}
    return by


def _fsdp_modules(model: nn.Module) -> dict[int, nn.Module]:
    """Parameter -> the FSDPModule that reduces its gradient: the innermost that holds it."""
    by: dict[int, nn.Module] = {}
    for module in model.modules():  # what is inside comes later
        if any(base.__name__ == "FSDPModule" for base in type(module).__mro__):
            by.update((id(parameter), module) for parameter in module.parameters())
    return by


def _megatron_axes(model: nn.Module, axes: Axes) -> dict[str, str]:
    """Axis -> what sees to it, where the model is Megatron's; {} for others."""
    named = {each.name: each for each in axes if each.source == "Megatron"}
    if not named or not any(hasattr(parameter, "tensor_model_parallel") for parameter in model.parameters()):
        return {}
    known = {"tp": "mark"} if "tp" in named else {}
    is_reduced = any(
        base.__name__ == "DistributedDataParallel" and base.__module__.startswith("megatron.")
        for module in model.modules()
        for base in type(module).__mro__
    )
    return known | {name: "wrapper" for name in ("dp", "cp") if is_reduced and name in named}


def _of_megatron(parameter: Any, known: Mapping[str, str]) -> dict[str, str]:
    """Experts (`allreduce` False) are reduced over other ranks, and of how they lie nothing is said."""
    if not getattr(parameter, "allreduce", True):
        return {}
    axes = {name: REPLICATE for name, by in known.items() if by == "wrapper"}
    return axes | (_by_mark(parameter) if "tp" in known else {})


def _is_marked(parameter: Any) -> bool:
    return bool(getattr(parameter, "tensor_model_parallel", False))


def _by_mark(parameter: Any) -> dict[str, str]:
    """Along tp, where a model has Megatron's marks: what has none is the same on all ranks."""
    dim = getattr(parameter, "partition_dim", -1)
    return {"tp": f"shard({dim})" if _is_marked(parameter) else REPLICATE}
