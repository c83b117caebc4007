"""Measures the sums of `sketches` of a tensor, or of one rank's part of it.

In pieces, so that the memory it takes is bounded, and on an accelerator by plain operations for which the host does not
wait. An element counts by its place in the whole tensor (row-major), its step, and which reading of the step it is:
readings of one step, and steps, add up to the sketch of all of them one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rangewatch.statistics.checksum import mixed, signed
from rangewatch.statistics.sketches import HALF, PROJECTIONS

HOST_ELEMENTS, DEVICE_ELEMENTS = 1 << 15, 1 << 22
"""Of a piece: in a processor's second cache, and as many as torch leaves to one thread, since threads would wait for
each other after each operation; some 200 MB of an accelerator."""

_STEP, _ODD, _SALT = signed(0x9E3779B97F4A7C15), signed(0xD1342543DE82EF95), signed(0xA0761D6478BD642F)
_BYTES = 1 << PROJECTIONS

Places = Sequence[Tensor | None]
"""Of a part, for each dimension its elements' places along that of the whole, (n,) int64 on the part's device; None
where it has them all."""


@torch.no_grad()
def measure(part: Tensor, places: Places, whole: Sequence[int], step: int, reading: int) -> Tensor:
    """(len(sketches.SUMS),) float64, on its device, of a non-empty plain dense `part` of a tensor of shape `whole`.

    NaN and Inf count in the hash and in the number of elements, and as 0 in the rest.
    """
    data = part.detach().resolve_neg()  # whose bits are its own
    data = data if data.is_contiguous() else data.contiguous()
    first = reading * math.prod(whole)
    # In Python's whole numbers, cut to 64 bits as torch has them.
    salt = signed((step + 1) * (_SALT % 2**64) % 2**64)
    hash_sum = torch.zeros((), dtype=torch.int64, device=data.device)
    sum_sq = torch.zeros((), dtype=torch.float64, device=data.device)
    projected = torch.zeros(PROJECTIONS, dtype=torch.float64, device=data.device)
    for values, index in _pieces(data, places, whole):
        keys = mixed((index + first) * _STEP + salt)
        hash_sum += mixed(_bits(values) * _ODD ^ keys).sum()
        numbers = values.double().nan_to_num(0.0, 0.0, 0.0)  # a copy: those of a float64 tensor are the training's own
        sum_sq += numbers.square().sum()
        projected += _project(numbers, keys)
    halves = torch.stack([(hash_sum >> 32) & (HALF - 1), hash_sum & (HALF - 1)]).double()
    largest = torch.finfo(torch.float64).max  # of sums that no float64 holds; a NaN would cost the whole batch
    projected = projected.nan_to_num_(0.0, largest, -largest)
    numel = torch.full((1,), float(data.numel()), dtype=torch.float64, device=data.device)
    rest = [sum_sq.reshape(1), projected.clamp(min=0.0), (-projected).clamp(min=0.0)]
    return torch.cat([numel, halves, *rest])


def _project(numbers: Tensor, keys: Tensor) -> Tensor:
    """(PROJECTIONS,) sums of the numbers, each with the sign that a bit of its key gives it."""
    if numbers.is_cpu:  # all at once: sums by the keys' lowest byte, and those with the signs of its bits
        return (torch.bincount(keys & (_BYTES - 1), numbers, _BYTES)[:, None] * _SIGNS).sum(0)
    signs = [((keys >> bit) & 1).double() for bit in range(PROJECTIONS)]
    total = numbers.sum()
    return torch.stack([2.0 * (each * numbers).sum() - total for each in signs])


_SIGNS = torch.tensor(
    [[2.0 * (byte >> bit & 1) - 1.0 for bit in range(PROJECTIONS)] for byte in range(_BYTES)],
    dtype=torch.float64,
    device="cpu",  # whatever the training has made the default by now
)


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(values: Tensor) -> Tensor:
    return values.view(_WORDS[values.itemsize]).long()


def _pieces(data: Tensor, places: Places, whole: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Elements that lie together, and the places of each in the whole: (n,) each."""
    flat, most, device = data.view(-1), HOST_ELEMENTS if data.is_cpu else DEVICE_ELEMENTS, data.device
    strides = [math.prod(whole[dim + 1 :]) for dim in range(len(whole))]
    inner, cut = len(whole), places[-1] if places else None
    if cut is not None:  # a row is the last dimension, of which some is here
        inner -= 1
    else:  # or all dimensions that are whole, whose places follow one another
        while inner and places[inner - 1] is None:
            inner -= 1
    width = math.prod(data.shape[inner:])
    if not inner or width >= most:
        for row in range(data.numel() // width):
            begin = _row_places(torch.full((1,), row, device=device), data.shape, places, strides, inner)
            for first in range(0, width, most):
                last = min(width, first + most)
                along = torch.arange(first, last, device=device) if cut is None else cut[first:last]
                yield flat[row * width + first : row * width + last], along + begin
        return
    along = torch.arange(width, device=device) if cut is None else cut
    count, step = data.numel() // width, most // width
    for first in range(0, count, step):
        rows = torch.arange(first, min(count, first + step), device=device)
        index = _row_places(rows, data.shape, places, strides, inner)[:, None] + along
        yield flat[first * width : (first + len(rows)) * width], index.view(-1)


def _row_places(rows: Tensor, shape: Sequence[int], places: Places, strides: Sequence[int], inner: int) -> Tensor:
    """Of rows of a part, numbered over its first `inner` dimensions, where they begin in the whole."""
    total = torch.zeros_like(rows)
    for dim in reversed(range(inner)):
        at, place = rows % shape[dim], places[dim]
        total = total + (at if place is None else place[at]) * strides[dim]
        rows = torch.div(rows, shape[dim], rounding_mode="floor")
    return total
