"""The axes of the mesh on which this rank stands: declared, or as its device meshes and process groups are.

An axis is known by the ranks along it: where two sources have the same ones it is one axis, by the first one's name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import nn

from rangewatch.core import limits
from rangewatch.recording.events import sendable
from rangewatch.recording.tensor_names import clean_parameters
from rangewatch.wire.events import Mesh, MeshAxis

Sizes = Sequence[tuple[str, int]]
"""Of a declared mesh: names and sizes, the outermost first."""

_MEGATRON = {
    "pp": "get_pipeline_model_parallel_group", "dp": "get_data_parallel_group", "cp": "get_context_parallel_group",
    "ep": "get_expert_model_parallel_group", "tp": "get_tensor_model_parallel_group",
}  # fmt: skip
"""Read: Megatron Core 0.16.1."""

_MPU = {
    "pp": ("get_pipeline_model_parallel_group", "get_pipe_parallel_group"),
    "dp": ("get_data_parallel_group",),
    "sp": ("get_sequence_parallel_group",),
    "tp": ("get_tensor_model_parallel_group", "get_slice_parallel_group"),
}
"""What DeepSpeed is given as `mpu`: Megatron's, or its own grid of a pipeline."""

_VARIABLES = (("tp", "_TENSOR_MODEL_PARALLEL_GROUP"), ("dp", "_DATA_PARALLEL_GROUP"), ("dp", "_WORLD_GROUP"))
"""Of deepspeed.utils.groups. Read: DeepSpeed 0.19."""


_OTHER_NAMES = ("pp", "ep")
"""Axes along which ranks hold other parameters: stages of a pipeline, and experts."""


@dataclasses.dataclass(frozen=True)
class Axis:
    """`ranks`: those along it, in its order, of which this process is the one at `index`."""

    name: str
    ranks: tuple[int, ...]
    index: int
    source: str

    @property
    def size(self) -> int:
        """How many ranks."""
        return len(self.ranks)


class Axes:
    """Those of one rank. Names are given once; what contradicts a declared axis is a problem."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.axes: dict[str, Axis] = {}
        self.problems: list[str] = []

    def __iter__(self) -> Iterator[Axis]:
        return iter(self.axes.values())

    def add(self, name: str, ranks: Sequence[int], source: str) -> None:
        """An axis of these ranks, unless it is known. One that this process is not on is passed over."""
        known, given = self.name_of(ranks), tuple(ranks)
        name = sendable(name)[: limits.AXIS_CHARACTERS] or "axis"
        other = self.axes.get(name)
        if self._rank not in given:
            return
        is_of_name = source not in ("FSDP", "DDP")  # whose groups have none
        if other is not None and other.source == "declared" and other.ranks != given and is_of_name:
            self.problems.append(
                f"{source} has ranks {_text(given)} along {name}, and the declared mesh has {_text(other.ranks)}"
            )
        if known is not None or len(self.axes) >= limits.AXES_SENT:
            return
        taken = (f"{name}_{number}" for number in range(2, limits.AXES_SENT + 2))
        free = name if other is None else next(each for each in taken if each not in self.axes)
        self.axes[free] = Axis(free, given, given.index(self._rank), source)

    def name_of(self, ranks: Sequence[int]) -> str | None:
        """The axis that has these ranks; one of a single rank is not told from others."""
        given = tuple(ranks)
        return next((each.name for each in self if each.ranks == given), None) if len(given) > 1 else None

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first along all axes along which ranks have parameters of the same names."""
        return all(each.index == 0 for each in self if each.name not in _OTHER_NAMES)

    def details(self) -> Mesh:
        """As they are sent: declared ones in their order, others by the distance of neighbours, the largest first."""
        declared = [each for each in self if each.source == "declared"]
        others = [each for each in self if each.source != "declared" and each.size > 1]
        axes = [*declared, *sorted(others, key=lambda each: (each.ranks[0] - each.ranks[1], -each.size))]
        source = next(iter(self), None)
        return Mesh("" if source is None else source.source, tuple(map(_sent, axes)), tuple(self.problems))


def _sent(axis: Axis) -> MeshAxis:
    first, stride = axis.ranks[0], axis.ranks[1] - axis.ranks[0] if axis.size > 1 else 1
    is_regular = stride > 0 and axis.ranks == tuple(range(first, first + axis.size * stride, stride))
    if is_regular:
        return MeshAxis(axis.name, axis.size, axis.index, first, stride)
    return MeshAxis(axis.name, axis.size, axis.index, ranks=axis.ranks)


def check_declared(sizes: Sizes, world_size: int) -> None:
    """Raises `ValueError` where the declared mesh has not as many ranks as there are."""
    count = math.prod(size for _, size in sizes)
    if sizes and count != world_size:
        shown = " x ".join(f"{name} {size}" for name, size in sizes)
        raise ValueError(f"rangewatch option mesh: {shown} is {count} ranks, and the world size is {world_size}")


def find_axes(model: nn.Module, declared: Sizes, rank: int, groups: Iterable[tuple[int, ...]]) -> Axes:
    """The axes of this process as it is now. `groups`: the ranks of each DistributedDataParallel around the model."""
    axes = Axes(rank)
    for name, ranks in _declared(declared, rank):
        axes.axes[name] = Axis(name, ranks, ranks.index(rank), "declared")
    if dist.is_available() and dist.is_initialized():
        for source in (_of_meshes, _of_megatron, _of_deepspeed, _of_fsdp1):
            with contextlib.suppress(Exception):  # of another release, or half initialised: what it says is not known
                for name, ranks in source(model):
                    axes.add(name, ranks, _SOURCES[source])
        for ranks in groups:
            axes.add("dp" if "dp" not in axes.axes else "ddp", ranks, "DDP")
    return axes


def _declared(sizes: Sizes, rank: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    stride = math.prod(size for _, size in sizes)
    for name, size in sizes:
        stride //= size
        first = rank - rank // stride % size * stride
        yield name, tuple(range(first, first + size * stride, stride))


def meshes_of(model: nn.Module) -> list[Any]:
    """The device meshes of the model's DTensors."""
    meshes = (getattr(parameter, "device_mesh", None) for _, parameter in clean_parameters(model))
    return list({id(mesh): mesh for mesh in meshes if mesh is not None}.values())


def axis_ranks(mesh: Any, dim: int) -> tuple[int, ...]:
    """The ranks along a dimension of a DeviceMesh that share this process's other coordinates; none beyond it."""
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return ()
    place: list[Any] = list(coordinate)
    place[dim] = slice(None)
    return tuple(int(each) for each in mesh.mesh[tuple(place)].tolist())


def _of_meshes(model: nn.Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The whole mesh first, of which those of parameters are parts or joined dimensions."""
    meshes = meshes_of(model)
    is_fsdp = any(base.__name__ == "FSDPModule" for module in model.modules() for base in type(module).__mro__)
    for mesh in [*map(_root, meshes), *meshes]:
        names = mesh.mesh_dim_names or _unnamed(mesh.ndim, is_fsdp=is_fsdp)
        for dim, name in enumerate(names):
            yield name, axis_ranks(mesh, dim)


def _unnamed(ndim: int, *, is_fsdp: bool) -> tuple[str, ...]:
    if is_fsdp and ndim <= 2:
        return ("dp",) if ndim == 1 else ("dp_replicate", "dp_shard")
    return tuple(f"mesh_dim_{dim}" for dim in range(ndim))


def _root(mesh: Any) -> Any:
    """The mesh of which this one is a part, as far as torch's release says so."""
    with contextlib.suppress(Exception):
        return mesh._get_root_mesh()
    with contextlib.suppress(Exception):  # until torch 2.8
        resources: Any = sys.modules["torch.distributed.device_mesh"]._mesh_resources
        of = getattr(resources, "get_root_mesh", None) or resources.get_parent_mesh
        return of(mesh) or mesh
    return mesh


def _of_megatron(model: nn.Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    state: Any = sys.modules.get("megatron.core.parallel_state")
    if state is not None and state.model_parallel_is_initialized():
        for name, get in _MEGATRON.items():
            yield from _group(name, getattr(state, get, None))


def _of_deepspeed(model: nn.Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Its module's variables: some of its functions make a group where there is none, which all ranks must do."""
    groups: Any = sys.modules.get("deepspeed.utils.groups")
    if groups is None:
        return
    given = [(name, getattr(groups.mpu, get, None)) for name, gets in _MPU.items() for get in gets]
    known = [each for name, get in given for each in _group(name, get)]
    mesh = getattr(groups, "mesh_device", None)
    for dim, name in enumerate(getattr(mesh, "mesh_dim_names", None) or ()):
        known.append(({"data_parallel": "dp", "sequence_parallel": "sp"}.get(name, name), axis_ranks(mesh, dim)))
    for name, variable in _VARIABLES:
        if name not in dict(known):
            known += _group(name, partial(getattr, groups, variable, None))
    for group in getattr(groups, "_EXPERT_PARALLEL_GROUP", {}).values():
        known.append(("ep", _ranks(group)))
    yield from known


def _of_fsdp1(model: nn.Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    for module in model.modules():
        if any(base.__name__ == "FullyShardedDataParallel" for base in type(module).__mro__):
            between: Any = getattr(module, "_inter_node_pg", None)
            if between is not None:
                yield "dp_replicate", _ranks(between)
            yield "dp" if between is None else "dp_shard", _ranks(module.process_group)
            return


_SOURCES: dict[Callable[[nn.Module], Iterator[tuple[str, tuple[int, ...]]]], str] = {
    _of_meshes: "DeviceMesh", _of_megatron: "Megatron", _of_deepspeed: "DeepSpeed", _of_fsdp1: "FSDP",
}  # fmt: skip


def _group(name: str, get: Callable[[], Any] | None) -> Iterator[tuple[str, tuple[int, ...]]]:
    group = None
    with contextlib.suppress(Exception):  # as Megatron raises for a group that is not initialised
        group = None if get is None else get()
    if group is not None:
        yield name, _ranks(group)


def _ranks(group: Any) -> tuple[int, ...]:
    return tuple(dist.get_process_group_ranks(group))


def _text(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown} and {len(ranks) - 8} more" if len(ranks) > 8 else shown
