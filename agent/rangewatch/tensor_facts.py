"""Facts of tensors in host memory, for what is told of a NaN or Inf: their range, and what makes one of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rangewatch import limits
from rangewatch.observer import local_part, why_unobservable
from rangewatch.statistics import reduce

_BRIEF = 16
"""How many times faster an element is read for its range alone (measured: 0.6 ns and 9 ns, float32)."""


class TensorFacts:
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
