"""Reads an operand of low precision with the scale that its library has cast it by: the sums of `scales.ALL`.

Everything is computed where the tensors lie and nothing is waited for. Two ways lead here: with the values as they were
before the cast (`of_values`), which shows what is beyond the limit, or with the stored numbers alone (`of_codes`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rangewatch.statistics import reduce, scales
from rangewatch.statistics.formats import SCALE_BIAS, Element


class Fit(NamedTuple):
    """Of one operand, on its device: `amax` (1,) in the operand's own units; `peaks` (3,): `PEAK`, `HIGH`, `LOW`;
    `counts` (3,): those of `scales.COUNTS`, or None where they were not asked for.
    """

    amax: Tensor
    peaks: Tensor
    counts: Tensor | None


def blocked(values: Tensor, shape: torch.Size) -> tuple[Tensor, list[int]] | None:
    """`values` with each dimension in two, (blocks, block), for scales of `shape`, which says how many blocks there are
    of each dimension; and that shape with ones between. None where blocks of one size do not fill the values.
    """
    if len(shape) == 0 or shape.numel() == 1:
        return values, [1] * values.dim()
    if len(shape) != values.dim():
        return None
    parts: list[int] = []
    apart: list[int] = []
    for size, blocks in zip(values.shape, shape, strict=True):
        if blocks == 0 or size % blocks:
            return None
        parts += [blocks, size // blocks]
        apart += [blocks, 1]
    return values.reshape(parts), apart


def granularity(values: torch.Size, shape: torch.Size) -> str:
    """What has a scale of its own: "tensor", "row" (a column, of an operand that lies transposed), or "block 1x32" by
    rows and columns. `shape` is of the scales, and fits, see `blocked`.
    """
    if shape.numel() == 1:
        return "tensor"
    sizes = [size // blocks for size, blocks in zip(values, shape, strict=True)]
    long = [at for at, size in enumerate(sizes) if size > 1]
    if len(long) == 1 and shape[long[0]] == 1:
        return "row"
    return f"block {'x'.join(map(str, sizes))}"


@torch.no_grad()
def of_values(values: Tensor, factor: Tensor, element: Element, *, counts: bool) -> Fit | None:
    """Of the `values` before the cast, any floating dtype, each multiplied by `factor` (one over its scale) for it.

    `factor`: one number, or as many as there are rows, columns or blocks, see `blocked`. None where they do not fit.
    """
    if not counts and factor.numel() == 1 and values.is_cpu and factor.is_cpu and values.is_contiguous():
        fit = _of_host(values, factor.item(), element)
        if fit is not None:
            return fit
    cells = blocked(values, factor.shape)
    if cells is None:
        return None
    magnitudes = cells[0].abs().nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    factors = factor.float().reshape(cells[1])
    amax = _largest(magnitudes, values.dim()).float()
    fit = _fit(amax, amax.to(_wide(amax)) * factors, -factors.to(_wide(amax)).log2(), element)
    return fit._replace(counts=_counts(magnitudes.float(), factors, element)) if counts else fit


def _of_host(values: Tensor, factor: float, element: Element) -> Fit | None:
    """The same of `values` in host memory with one `factor`: one pass, and no further tensors. None where any value is
    not finite, or the factor is no number above 0.
    """
    amax = reduce.amax(values)
    if not (0 < amax < math.inf and 0 < factor < math.inf):
        return None
    log2 = -math.log2(factor)
    peaks = [amax * factor / element.largest, log2 + SCALE_BIAS, SCALE_BIAS - log2]
    # Whatever the training has made torch's defaults.
    amaxes = torch.tensor([amax], dtype=torch.float32, device="cpu")
    return Fit(amaxes, torch.tensor(peaks, dtype=torch.float64, device="cpu"), None)


@torch.no_grad()
def of_codes(codes: Tensor, scale: Tensor, element: Element) -> Fit | None:
    """Of the stored numbers, which `scale` is multiplied with. What has saturated cannot be told from what is just as
    large as the largest number, and what became zero not from what was.
    """
    cells = blocked(codes.float(), scale.shape)
    if cells is None:
        return None
    of_blocks = scale.float().reshape(cells[1])
    magnitudes = cells[0].abs().nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    largest = _largest(magnitudes, codes.dim())
    wide = _wide(largest)
    return _fit(largest * of_blocks, largest.to(wide), of_blocks.to(wide).log2(), element)


@torch.no_grad()
def of_state(amax: Tensor, factor: Tensor, limits: Tensor) -> Tensor:
    """(n, 3) `PEAK`, `HIGH` and `LOW` of n operands by what their module keeps of them: each one's largest magnitude,
    what it is multiplied by for the cast, and the largest number of its format. Zeros where there was none.
    """
    wide = _wide(amax)
    amax, factor = amax.to(wide), factor.to(wide)
    is_used = (amax > 0) & amax.isfinite() & factor.isfinite() & (factor > 0)
    log2 = -torch.where(is_used, factor, 1.0).log2()
    parts = torch.stack((amax * factor / limits.to(wide), log2 + SCALE_BIAS, SCALE_BIAS - log2), dim=1)
    return torch.where(is_used[:, None], parts, 0.0)


def _largest(magnitudes: Tensor, dims: int) -> Tensor:
    """Of each block of `blocked`, or of all."""
    inner = tuple(range(1, 2 * dims, 2)) if magnitudes.dim() > dims else tuple(range(dims))
    return magnitudes.amax(inner, keepdim=True) if inner else magnitudes


def _fit(amax: Tensor, stored: Tensor, log2: Tensor, element: Element) -> Fit:
    """Of each row or block its largest magnitude, that as it is to be `stored`, and log2 of its scale."""
    is_used = (stored > 0) & log2.isfinite()  # the scale of zeros is whatever its library lets it be
    peak = torch.where(is_used, stored / element.largest, 0.0).amax()
    high = torch.where(is_used, log2 + SCALE_BIAS, 0.0).amax()
    low = torch.where(is_used, SCALE_BIAS - log2, 0.0).amax()
    return Fit(amax.nan_to_num(nan=0.0, posinf=0.0).amax().reshape(1), torch.stack((peak, high, low)), None)


def _counts(magnitudes: Tensor, factors: Tensor, element: Element) -> Tensor:
    limit, is_beyond = scales.largest_kept(element)
    scaled = magnitudes * factors
    is_there = magnitudes > 0
    is_saturated = (scaled >= limit) if is_beyond else (scaled > limit)
    is_flushed = is_there & (scaled <= scales.largest_flushed(element))
    return torch.stack([each.sum().to(_wide(scaled)) for each in (is_there, is_saturated, is_flushed)])


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.device.type == "mps" else torch.float64
