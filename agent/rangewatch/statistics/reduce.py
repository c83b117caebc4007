"""The statistics of one tensor: in host memory (`amax`, `full_set`) and on an accelerator (`measure`).

On the host, exactly and in as few passes as torch's own reductions allow. `aminmax` is the cheapest full read there is
(one vectorised pass, no temporary); NaN propagates through it and Inf shows in it, so counts are taken only when its
answer is not finite. The full set needs several passes and is taken on a cadence.

On an accelerator by torch operations that never make the host wait: no `.item()`, no `bool(tensor)`, no indexing by a
mask, no tensor made from host data. Everything is queued on the device's stream and merged there into the tensor's row
of a `DeviceRing`, the full set in the same reads. On CUDA the kernels of `fused` do the same in one pass, and this is
what is left to do without them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rangewatch.core import limits
from rangewatch.core.limits import BLOCK_ELEMENTS
from rangewatch.statistics import FULL_SET, ON_DEVICE, UFUNCS, exponents

_INFINITY = math.inf
_aminmax = torch.aminmax


class Nonfinite(NamedTuple):
    """`amax` over the finite elements (0 when there is none) and how many of the others there are."""

    amax: float
    nan_count: int
    inf_count: int


class FullSet(NamedTuple):
    """The statistics that cost passes of their own: `values` by name, of each of `statistics.FULL_SET`.

    `exponents`: (exponents.BINS,) the histogram, or None when it was not asked for.
    """

    values: dict[str, float]
    exponents: exponents.Counts | None = None


def amax(tensor: Tensor) -> float:
    """Largest magnitude in a non-empty, dense, contiguous floating tensor; NaN or Inf where it holds one.

    Call it with gradients off. -0.0 may stand for 0.0.
    """
    low, high = _aminmax(tensor)
    least, largest = low.item(), high.item()
    return largest if largest > -least else -least


def amax_of_blocks(tensor: Tensor) -> float:
    """The same for tensors that `aminmax` does not take: with no elements (then 0), or float8."""
    largest = 0.0
    for block in blocks(distinct(tensor)):
        value = amax(block)
        if not value <= largest:  # NaN stays once it is there
            largest = value
        if value != value:
            break
    return largest


@torch.no_grad()
def count_nonfinite(tensor: Tensor) -> Nonfinite:
    """For a tensor whose `amax` was not finite; see `full_set` for the bit patterns."""
    bits = _BITS[tensor.dtype]
    largest, nan_count, inf_count = 0, 0, 0
    once, repeats = _repeated(tensor)
    for block in blocks(once):
        magnitude = bits.patterns(block) & bits.magnitude_mask
        finite = magnitude < bits.infinity
        block_inf_count = int(np.count_nonzero(magnitude == bits.infinity))
        inf_count += block_inf_count
        nan_count += magnitude.size - int(np.count_nonzero(finite)) - block_inf_count
        magnitude *= finite  # what is not finite counts as 0
        largest = max(largest, int(magnitude.max()))
    return Nonfinite(bits.value(largest), repeats * nan_count, repeats * inf_count)


@torch.no_grad()
def full_set(tensor: Tensor, *, histogram: bool = False) -> FullSet:
    """The full set of any strided floating tensor, empty ones included. It costs 8 times an `aminmax` (float32).

    `histogram`: with the exponents too, which takes 3 times as long.

    Works on the bit patterns: without their sign they are whole numbers in the order of the magnitudes. One less, with
    wrap-around, and zero is the largest of all, so that the smallest is the smallest that is not zero.
    """
    bits = _BITS[tensor.dtype]
    values = {each.name: each.identity for each in FULL_SET}
    counts = np.zeros(exponents.BINS, np.int64) if histogram else None
    once, repeats = _repeated(tensor)
    for block in blocks(once):
        less_one = bits.patterns(block) & bits.magnitude_mask
        if counts is not None:
            counts += exponents.count(less_one, bits.mantissa_bits, bits.smallest_normal_exponent)
        less_one -= 1
        for name, merge_two in MERGE.items():  # a statistic without a reduction fails, and is not left at its identity
            values[name] = merge_two(values[name], _REDUCTIONS[name](bits, less_one, block))
    if repeats != 1:
        values |= {each.name: repeats * values[each.name] for each in FULL_SET if each.merge == "sum"}
        counts = None if counts is None else repeats * counts
    return FullSet(values, counts)


_MERGERS: dict[str, Callable[[float, float], float]] = {"max": max, "min": min, "sum": operator.add}
MERGE = {each.name: _MERGERS[each.merge] for each in FULL_SET}
"""What merges two values of a statistic of the full set: faster than numpy for single ones."""


def _amin(bits: _Bits, less_one: NDArray[Any], block: Tensor) -> float:
    smallest = int(less_one.min()) + 1
    return bits.value(smallest) if smallest < bits.infinity else _INFINITY


def _sum_of_squares(block: Tensor) -> float:
    wide = block.double()
    total = float(torch.dot(wide, wide))
    if not total < _INFINITY:  # something was not finite, or a square of float64 is beyond it
        wide = torch.nan_to_num(wide, nan=0.0, posinf=0.0, neginf=0.0)
        total = float(torch.dot(wide, wide))
    return total


_REDUCTIONS: dict[str, Callable[[_Bits, NDArray[Any], Tensor], float]] = {
    "amin": _amin,
    "zero_count": lambda bits, less_one, block: int(np.count_nonzero(less_one == bits.zero_less_one)),
    "subnormal_count": lambda bits, less_one, block: int(np.count_nonzero(less_one < bits.smallest_normal - 1)),
    "sum_sq": lambda bits, less_one, block: _sum_of_squares(block),
}
"""Of each statistic of the full set, from one block and its bit patterns without sign, less one."""


def dense(tensor: Tensor) -> Tensor:
    """The same elements as a contiguous view where their memory is dense, whatever its order; else the tensor itself.

    `aminmax` over a transposed matrix takes 7 times as long as over its memory (measured, torch 2.13).
    """
    if tensor.is_contiguous():
        return tensor
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    permuted = tensor.permute(order)
    return permuted if permuted.is_contiguous() else tensor


def distinct(tensor: Tensor) -> Tensor:
    """Without the repetitions of expanded dimensions: the same largest and smallest, fewer reads."""
    for dim in range(tensor.dim()):
        if tensor.stride(dim) == 0 and tensor.size(dim) > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _repeated(tensor: Tensor) -> tuple[Tensor, int]:
    """The distinct elements and how often each is there: an expanded mask may stand for a billion elements."""
    once = distinct(tensor)
    return once, tensor.numel() // max(once.numel(), 1)


def blocks(tensor: Tensor) -> Iterator[Tensor]:
    """The elements as contiguous pieces of at most `BLOCK_ELEMENTS`, copied only where they do not lie together.

    Float8 pieces come as float32, which holds each of their values exactly and which every reduction knows.
    """
    tensor = dense(tensor.resolve_neg())
    if tensor.numel() == 0:
        return
    if tensor.is_contiguous():
        for piece in torch.split(tensor.view(-1), BLOCK_ELEMENTS):
            yield piece.float() if piece.dtype.itemsize == 1 else piece
    elif tensor.numel() <= BLOCK_ELEMENTS:
        yield from blocks(tensor.contiguous())
    else:
        longest = max(range(tensor.dim()), key=tensor.size)
        half = (tensor.size(longest) + 1) // 2
        for part in torch.split(tensor, half, longest):
            yield from blocks(part)


class _Bits(NamedTuple):
    """How a dtype's bit patterns read as whole numbers, once the sign is masked off."""

    dtype: torch.dtype
    torch_dtype: torch.dtype
    numpy_dtype: np.dtype[Any]
    magnitude_mask: Any
    zero_less_one: Any
    smallest_normal: int
    infinity: int
    mantissa_bits: int
    smallest_normal_exponent: int

    def patterns(self, block: Tensor) -> NDArray[Any]:
        """The bit patterns of a contiguous piece; the same memory.

        Not by `Tensor.numpy`, after which the storage can never be resized: FSDP2 frees and fills it at each step.
        """
        return np.from_dlpack(block.view(self.torch_dtype)).view(self.numpy_dtype)

    def value(self, pattern: int) -> float:
        """The magnitude with this pattern."""
        patterns = np.array([pattern], self.numpy_dtype)
        return torch.from_numpy(patterns.view(f"i{patterns.itemsize}")).view(self.dtype).double().item()

    @classmethod
    def of(cls, dtype: torch.dtype) -> _Bits:
        """How the blocks of a tensor of this dtype read; `smallest_normal` is that of the dtype itself."""
        own = torch.finfo(dtype)
        dtype = torch.float32 if dtype.itemsize == 1 else dtype  # see `blocks`
        epsilon, exponent = (_exponent(getattr(torch.finfo(dtype), name)) for name in ("eps", "smallest_normal"))
        unsigned = np.dtype(f"u{dtype.itemsize}")
        signed = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        values = torch.tensor([own.smallest_normal, math.inf], dtype=torch.float64).to(dtype)
        smallest_normal, infinity = values.view(signed).tolist()
        all_ones = unsigned.type(np.iinfo(unsigned).max)
        magnitude_mask = all_ones >> unsigned.type(1)
        return cls(
            dtype, signed, unsigned, magnitude_mask, all_ones, smallest_normal, infinity, -epsilon, exponent
        )  # fmt: skip


def _exponent(power_of_two: float) -> int:
    return math.frexp(power_of_two)[1] - 1


class _BitsByDtype(dict[torch.dtype, _Bits]):
    def __missing__(self, dtype: torch.dtype) -> _Bits:
        bits = self[dtype] = _Bits.of(dtype)
        return bits


_BITS = _BitsByDtype()


COLUMNS = tuple(each.name for each in ON_DEVICE)
"""The statistics a device measures, in the order of its rows. Calls and numbers of elements the host knows itself."""

_RULES = [each.merge for each in ON_DEVICE]
_MAX, _MIN, _SUM = (slice(_RULES.index(rule), len(_RULES) - _RULES[::-1].index(rule)) for rule in UFUNCS)


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
        statistics[_SUM] *= tensor.numel() // values.numel()
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
    statistics = {
        "amax": finite_magnitude.amax(),
        "nan_count": torch.isnan(values).sum(),
        "inf_count": torch.isinf(values).sum(),
        "amin": torch.where(nonzero, magnitude, math.inf).amin(),
        "zero_count": zero.sum(),
        "subnormal_count": (nonzero & (magnitude < smallest_normal)).sum(),
        "sum_sq": finite_magnitude.to(dtype).square().sum(),
    }
    return torch.stack([statistics[name].to(dtype) for name in COLUMNS])


@torch.no_grad()
def count_exponents(tensor: Tensor) -> Tensor:
    """(exponents.BINS,) int64 of a non-empty dense floating tensor, on its device: what `exponents.count` counts.

    An element takes some 40 bytes meanwhile, of a block of them at a time.
    """
    values = distinct(tensor.detach())
    counts = torch.zeros(exponents.BINS + 1, dtype=torch.int64, device=values.device)
    for block in torch.split(_flat(values), limits.DEVICE_BLOCK_ELEMENTS):
        wide = block if block.itemsize >= 4 else block.float()
        bins = (torch.frexp(wide).exponent - (1 + exponents.FIRST)).clamp(0, exponents.BINS - 1)
        has_exponent = torch.isfinite(wide) & (wide != 0)
        bins = torch.where(has_exponent, bins, exponents.BINS).long()
        counts.scatter_add_(0, bins, torch.ones_like(bins))
    return counts[:-1] * (tensor.numel() // values.numel())


def merge(row: Tensor, values: Tensor) -> None:
    """Merge a vector of `COLUMNS` into a row of the same, in place, by each statistic's rule."""
    torch.maximum(row[_MAX], values[_MAX], out=row[_MAX])
    torch.minimum(row[_MIN], values[_MIN], out=row[_MIN])
    row[_SUM].add_(values[_SUM])


def fill_identities(rows: Tensor) -> None:
    """Set rows (..., `COLUMNS`) to the statistics' neutral elements, in place."""
    for position, statistic in enumerate(ON_DEVICE):
        rows[..., position].fill_(statistic.identity)
