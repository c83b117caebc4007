"""Where the elements of this rank's part of a DTensor lie in the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rangewatch.statistics.sketch import Places

SAYS_ORDER = torch.torch_version.TorchVersion(torch.__version__) >= "2.5"
"""Whether FSDP2 says by a `split_factor` that it has cut a dimension after tensor parallelism, not before."""


def places_of(tensor: Any, local: Tensor) -> Places | None:
    """Of a DTensor and its local part; None where that is not known, or the part is one of a sum."""
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    orders = getattr(getattr(tensor, "_spec", None), "shard_order", None) or ()
    if coordinate is None or any(list(each.mesh_dims) != sorted(each.mesh_dims) for each in orders):
        return None
    return part_of(tuple(tensor.shape), local, tensor.placements, tuple(mesh.shape), tuple(coordinate))


def part_of(
    whole: Sequence[int], local: Tensor, placements: Sequence[Any], sizes: Sequence[int], coordinate: Sequence[int]
) -> Places | None:
    """The same, on a mesh of these `sizes` at this `coordinate`.

    Each dimension of the mesh cuts what those before it have left as `torch.chunk` does; a placement with a
    `split_factor` (FSDP2 over tensor parallelism) cuts each of so many pieces, which a later one then deals out.
    """
    places: list[Tensor | None] = [None] * len(whole)
    for placement, size, at in zip(placements, sizes, coordinate, strict=True):
        if size == 1 or placement.is_replicate():
            continue
        dim = getattr(placement, "dim", None)
        if placement.is_partial() or not isinstance(dim, int) or not whole:
            return None
        dim %= len(whole)
        now = places[dim]
        if now is not None and not SAYS_ORDER:
            return None
        now = torch.arange(whole[dim], device=local.device) if now is None else now
        factor = getattr(placement, "split_factor", 1)
        if factor > 1 and len(now) % (factor * size):
            return None  # who has how many of an uneven cut is not the same in all releases of torch
        places[dim] = torch.cat([_chunk(each, size, at) for each in now.chunk(factor)])
    lengths = [whole[dim] if each is None else len(each) for dim, each in enumerate(places)]
    return places if lengths == list(local.shape) else None


def is_first_copy(placements: Sequence[Any], coordinate: Sequence[int]) -> bool:
    """Whether of all ranks of the mesh that hold the same part this one is the first."""
    return all(not each.is_replicate() or at == 0 for each, at in zip(placements, coordinate, strict=True))


def _chunk(values: Tensor, size: int, at: int) -> Tensor:
    chunks = values.chunk(size)
    return chunks[at] if at < len(chunks) else values[:0]
