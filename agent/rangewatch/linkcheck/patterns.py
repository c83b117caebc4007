"""Values that are known bit by bit on every rank, and the comparison with what came over."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

COUNT = 1 << 16
"""Elements: 256 KiB, enough for NCCL and gloo to cut the message into pieces."""

_WHOLE = {4: torch.int32, 8: torch.int64}


def bits_of(rank: int) -> torch.Tensor:
    """(COUNT,) int32 on the CPU: every bit of a rank's own pattern is as good as thrown."""
    generator = torch.Generator().manual_seed(1_000_003 + rank)
    return torch.randint(-(2**31), 2**31, (COUNT,), dtype=torch.int64, generator=generator).to(torch.int32)


def whole_numbers(rank: int) -> torch.Tensor:
    """(COUNT,) int64: their sum over ranks is exact, overflow included."""
    return bits_of(rank).to(torch.int64) * 0x1_0000_0001


def exact_floats(rank: int) -> torch.Tensor:
    """(COUNT,) float32: sixteenths up to 64, so that the sum of 4,096 ranks is exact in any order."""
    return (bits_of(rank).remainder(2048) - 1024).to(torch.float32) / 16


def total(pattern: Callable[[int], torch.Tensor], ranks: Iterable[int]) -> torch.Tensor:
    """(COUNT,): the sum over ranks. One at a time: all of a thousand ranks' would be half a gigabyte on each."""
    first, *rest = ranks
    found = pattern(first)
    for rank in rest:
        found += pattern(rank)
    return found


def first_difference(got: torch.Tensor, expected: torch.Tensor) -> str:
    """In words, where bits differ first; "" where none does. Both (n,), of one dtype, on one device."""
    shape = _WHOLE[got.element_size()]
    got, expected = got.view(shape), expected.view(shape)
    places = (got != expected).nonzero().flatten()
    if not len(places):
        return ""
    first, digits = int(places[0]), 2 * got.element_size()
    mask = (1 << 4 * digits) - 1
    found, wanted = (f"0x{int(values[first]) & mask:0{digits}x}" for values in (got, expected))
    return f"element {first} is {found} and not {wanted} ({len(places)} of {len(got)} wrong)"
