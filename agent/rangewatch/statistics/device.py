"""The statistics of a tensor on an accelerator, by torch operations that never make the host wait.

No `.item()`, no `bool(tensor)`, no indexing by a mask, no tensor made from host data: everything is queued on the
device's stream, and the result is merged there into the tensor's row of a `DeviceRing`. The full set comes with the
same reads. On CUDA the kernels of `fused` do the same in one pass, and this is what is left to do without them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rangewatch.core import limits
from rangewatch.statistics.reduce import distinct

MAX_COLUMNS = ("amax",)
MIN_COLUMNS = ("amin",)
SUM_COLUMNS = ("nan_count", "inf_count", "zero_count", "subnormal_count", "sum_sq")
COLUMNS = MAX_COLUMNS + MIN_COLUMNS + SUM_COLUMNS
"""The statistics a device measures, in the order of its rows. Calls and numbers of elements the host knows itself."""

_IDENTITIES = (0.0, math.inf, 0.0, 0.0, 0.0, 0.0, 0.0)


def measure(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The statistics of a non-empty dense floating tensor as a vector of `COLUMNS` in `dtype`, on its device.

    Large ones are taken block by block: the temporaries of one are then all the memory that this needs. Of an expanded
    one each element is read once.
    """
    values = distinct(tensor.detach())
    if values.numel() <= limits.DEVICE_BLOCK_ELEMENTS:
        statistics = _measure(values, dtype)
    else:
        blocks = iter(torch.split(_flat(values), limits.DEVICE_BLOCK_ELEMENTS))
        statistics = _measure(next(blocks), dtype)
        for block in blocks:
            merge(statistics, _measure(block, dtype))
    if values.numel() < tensor.numel():
        statistics[2:] *= tensor.numel() // values.numel()
    return statistics


def _flat(values: Tensor) -> Tensor:
    """All elements in one dimension, in the order of memory: a view wherever they lie without gaps."""
    order = sorted(range(values.dim()), key=values.stride, reverse=True)
    return values.permute(order).reshape(-1)


def _measure(values: Tensor, dtype: torch.dtype) -> Tensor:
    smallest_normal = torch.finfo(values.dtype).smallest_normal
    if values.dtype.itemsize == 1:
        values = values.float()  # exact; few operations know float8
    magnitude, finite, zero = values.abs(), torch.isfinite(values), values == 0
    nonzero = finite & ~zero
    finite_magnitude = torch.where(finite, magnitude, 0.0)
    statistics = (
        finite_magnitude.amax(),
        torch.where(nonzero, magnitude, math.inf).amin(),
        torch.isnan(values).sum(),
        torch.isinf(values).sum(),
        zero.sum(),
        (nonzero & (magnitude < smallest_normal)).sum(),
        finite_magnitude.to(dtype).square().sum(),
    )
    return torch.stack([statistic.to(dtype) for statistic in statistics])


def merge(row: Tensor, values: Tensor) -> None:
    """Merge a vector of `COLUMNS` into a row of the same, in place, by each statistic's rule."""
    torch.maximum(row[:1], values[:1], out=row[:1])
    torch.minimum(row[1:2], values[1:2], out=row[1:2])
    row[2:].add_(values[2:])


def fill_identities(rows: Tensor) -> None:
    """Set rows (..., `COLUMNS`) to the statistics' neutral elements, in place."""
    for position, identity in enumerate(_IDENTITIES):
        rows[..., position].fill_(identity)
