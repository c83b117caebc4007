"""What would be left of a tensor in each of `formats.FORMATS`: flushed to zero, saturated, how far off, which scales.

Of a sample of whole rows, spread evenly over the tensor, since all formats together cost some 200 passes. The tensor's
own `amax` is that of all its elements. Rounding is to nearest, ties to even, and what is too large becomes the largest
number, as in casts of training recipes (torchao's, and torch's after a clamp): equal to both bit by bit
(tests/agent/statistics/test_whatif.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rangewatch.statistics import formats, in_use
from rangewatch.statistics.formats import Element, Format

SAMPLE_ELEMENTS = 4_096  # of a scheduled reading: some 2 ms on one core
REQUEST_ELEMENTS = 262_144  # of one that was asked for
IN_USE_ELEMENTS = 4_096  # of the format that a tensor really is in, which is read often
ROW_ELEMENTS = 1_024  # of a tensor of one dimension, which is one long row: pieces of it
LEAST_AMAX = 1e-12  # torchao's: the scale of a tensor of zeros is finite
_EXPONENT_BITS = 0x7F800000  # of float32
_LEAST_NORMAL = 2.0**-126


def sample(tensor: Tensor, most: int = SAMPLE_ELEMENTS) -> Tensor:
    """(rows, columns) float32 of a non-empty strided tensor in host memory: whole rows of its last dimension, evenly
    spread, of about `most` elements in all and at least one row. Of one dimension: pieces of `ROW_ELEMENTS`.
    """
    if tensor.dim() < 2:
        flat = tensor.reshape(-1)
        whole = flat.numel() // ROW_ELEMENTS
        if whole == 0:
            return flat.float()[None]
        return _spread(flat[: whole * ROW_ELEMENTS].view(whole, ROW_ELEMENTS), most)
    while tensor.dim() > 2:  # one dimension after the other, so that nothing is copied but what is taken
        if tensor.is_contiguous():
            tensor = tensor.view(-1, tensor.shape[-1])
            break
        tensor = _thinned(tensor, most).flatten(0, 1)
    return _spread(tensor, most)


def _thinned(tensor: Tensor, most: int) -> Tensor:
    """Of the first dimension as many evenly spread entries as have about `most` elements."""
    count = max(1, most // max(tensor[0].numel(), 1))
    return tensor if count >= len(tensor) else tensor[torch.arange(count) * len(tensor) // count]


def _spread(rows: Tensor, most: int) -> Tensor:
    return _thinned(rows, most).float()


@torch.no_grad()
def measure(rows: Tensor, amax: float, previous_amax: float) -> NDArray[np.float64]:
    """The sums of `formats.ALL`, (len(ALL),), of (n, m) float32 `rows` of a tensor.

    `amax` and `previous_amax` are the whole tensor's, of this step and of the one before. NaN and Inf are left out.
    """
    finite = torch.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)
    sums = np.zeros(len(formats.ALL))
    sums[formats.POSITIONS[formats.COUNT]] = int(torch.count_nonzero(finite))
    sums[formats.POSITIONS[formats.SUM_SQ]] = _sum_sq(finite)
    for several in _ALIKE:
        for name, of_format in _sums_of(finite, several, amax, previous_amax).items():
            for what, value in of_format.items():
                sums[formats.POSITIONS[formats.column(name, what)]] = value
    return sums


_ALIKE = [
    [each for each in formats.FORMATS if each.block == block] for block in {each.block for each in formats.FORMATS}
]
"""Formats whose blocks are as wide: they are cast at once, since of small tensors calling torch is most of the time."""


def _sums_of(rows: Tensor, several: list[Format], amax: float, previous_amax: float) -> dict[str, dict[str, float]]:
    """Those of each of the formats, which are alike in their blocks, by its name."""
    blocked = _blocked(rows, several[0].block)
    largest = blocked.abs().amax(-1, keepdim=True)
    factors = [_factors(largest, each, amax, previous_amax) for each in several]
    together = torch.stack([each.expand(largest.shape) for each in factors])
    stored, is_saturated = cast_by(blocked * together, _limits_of([each.element for each in several]))
    is_nonzero = blocked != 0
    reciprocal = torch.where(is_nonzero, blocked.abs(), torch.inf).reciprocal_()
    flushed = torch.count_nonzero((stored == 0) & is_nonzero, (1, 2, 3)).tolist()
    saturated = torch.count_nonzero(is_saturated, (1, 2, 3)).tolist()
    error = stored.div_(together).sub_(blocked)
    relative = (error.abs() * reciprocal).sum((1, 2, 3), dtype=torch.float64).tolist()
    square = error.double().square_().sum((1, 2, 3)).tolist()
    found = {}
    for at, each in enumerate(several):
        found[each.name] = {
            "flushed_count": flushed[at], "saturated_count": saturated[at], "error_sq": square[at],
            "relative_error": relative[at],
        }  # fmt: skip
        if each.scaling != "none":
            is_used = is_nonzero.any() if len(factors[at]) == 1 else largest != 0
            log2 = formats.SCALE_BIAS - factors[at][is_used.expand_as(factors[at])].double().log2()
            found[each.name] |= {
                "scale_count": len(log2), "scale_log2": float(log2.sum()), "scale_log2_sq": float(log2.square().sum()),
            }  # fmt: skip
    return found


@torch.no_grad()
def measure_in_use(rows: Tensor, each: Format, amax: float, previous_amax: float) -> NDArray[np.float64]:
    """The sums of `in_use.ALL`, (len(ALL),), of (n, m) float32 `rows`, which are rounded to `each`; see `measure`."""
    finite = torch.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)
    blocked, factors = scaled(finite, each, amax, previous_amax)
    is_nonzero = blocked != 0
    stored, is_saturated = cast(blocked * factors, each.element)
    error = stored / factors - blocked
    values = {
        "count": int(is_nonzero.sum()),
        "sum_sq": _sum_sq(finite),
        "spread_sq": _spread_sq(finite, each.block),
        "flushed_count": int(((stored == 0) & is_nonzero).sum()),
        "saturated_count": int(is_saturated.sum()),
        "error_sq": _sum_sq(error),
        "relative_error": float((error / blocked).abs_().nan_to_num_(nan=0.0).sum(dtype=torch.float64)),
    }
    finer = in_use.finer(each)
    if finer is not None:
        blocked, factors = scaled(finite, finer, amax, previous_amax)
        stored, is_saturated = cast(blocked * factors, finer.element)
        values["finer_error_sq"] = _sum_sq(stored / factors - blocked)
        values["finer_lost_count"] = int((((stored == 0) & (blocked != 0)) | is_saturated).sum())
    return np.array([values.get(name, 0.0) for name in in_use.NAMES])


def _spread_sq(rows: Tensor, block: int) -> float:
    """Around the mean of each block, or of each row where they are not whole blocks."""
    parts = rows.double()
    if block and not rows.shape[1] % block:
        parts = parts.reshape(-1, block)
    return float((parts - parts.mean(-1, keepdim=True)).square_().sum())


def _sum_sq(values: Tensor) -> float:
    wide = values.double().flatten()
    return float(torch.dot(wide, wide))


class Bounds(NamedTuple):
    """Of an element, or of several as tensors that broadcast: its smallest normal number, the distance of neighbours
    over the power of two below them, and its largest number."""

    normal: Any
    unit: Any
    largest: Any


def _bounds(element: Element) -> Bounds:
    return Bounds(2.0**element.smallest_exponent, 2.0**-element.mantissa_bits, element.largest)


def _limits_of(elements: list[Element]) -> Bounds:
    """(elements, 1, 1, 1) each."""
    each = zip(*map(_bounds, elements), strict=True)
    return Bounds(*(torch.tensor(values).view(-1, 1, 1, 1) for values in each))


def cast(values: Tensor, element: Element) -> tuple[Tensor, Tensor]:
    """float32 `values` as `element` holds them, and where they were beyond its largest number. NaN stays NaN."""
    return cast_by(values, _bounds(element))


def cast_by(values: Tensor, of: Bounds) -> tuple[Tensor, Tensor]:
    """The same by an element's bounds, or by those of several."""
    bits = values.view(torch.int32) & _EXPONENT_BITS
    unit = bits.view(torch.float32).clamp_min_(of.normal).mul_(of.unit)  # of the power of two at or below
    rounded = (values / unit).round_().mul_(unit)
    is_saturated = rounded.abs() > of.largest
    return rounded.clamp_(-of.largest, of.largest), is_saturated


def scaled(rows: Tensor, each: Format, amax: float, previous_amax: float) -> tuple[Tensor, Tensor]:
    """(n, blocks, block) of (n, m) finite float32 `rows`, and what each is multiplied by before it is cast, which
    broadcasts to that: one over its scale. The last block of a row is filled up with zeros.
    """
    blocked = _blocked(rows, each.block)
    return blocked, _factors(blocked.abs().amax(-1, keepdim=True), each, amax, previous_amax)


def _blocked(rows: Tensor, block: int) -> Tensor:
    if not block:
        return rows[:, None]
    missing = -rows.shape[1] % block
    rows = torch.nn.functional.pad(rows, (0, missing)) if missing else rows
    return rows.reshape(len(rows), -1, block)


def _factors(largest: Tensor, each: Format, amax: float, previous_amax: float) -> Tensor:
    """(n, blocks, 1) or (1, 1, 1), of the `largest` magnitude of each block."""
    if each.scaling == "block":
        return _of_powers(largest, each) if each.scale == "e8m0" else _of_two_levels(largest, each, amax)
    if each.scaling == "none":
        return torch.ones(1, 1, 1)
    if each.scaling == "row":
        of = largest.double()
    else:
        of = torch.full((1, 1, 1), amax if each.scaling == "tensor" else previous_amax, dtype=torch.float64)
    return (each.element.largest / of.clamp_min(LEAST_AMAX)).float()


def _of_powers(largest: Tensor, each: Format) -> Tensor:
    """The MX specification's: the block's power of two over the largest that the element holds, as E8M0 has it."""
    power = (largest.view(torch.int32) & _EXPONENT_BITS).view(torch.float32).clamp_min(_LEAST_NORMAL)
    return (power * 2.0**-each.element.largest_exponent).clamp_min(_LEAST_NORMAL).reciprocal()


def _of_two_levels(largest: Tensor, each: Format, amax: float) -> Tensor:
    """Scales in E4M3, over one in float32 that has the largest of them be E4M3's largest number."""
    of_tensor = torch.tensor(amax or LEAST_AMAX) / (formats.E4M3.largest * each.element.largest)
    wanted = largest / each.element.largest / of_tensor
    least = 2.0**formats.E4M3.smallest_exponent  # torchao's, so that no scale is subnormal
    return of_tensor.reciprocal() / cast(wanted.clamp(least, formats.E4M3.largest), formats.E4M3)[0]
