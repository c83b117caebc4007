"""A checksum of a tensor's bits: any flipped bit changes it, and so do all but a few in 2^53 of other changes.

The elements in their order, whatever their strides, are words of 8 bytes in rows of `WIDTH`. The words of each column
are added, modulo 2^64; the sums are scrambled, each in its own way, and added. It is read at the speed of memory, is
the same on every device, and a word that has gone to another place shows unless that is a multiple of `WIDTH` away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WIDTH = 1021
"""Words of a row: prime, so that no column of a matrix falls on one of ours; a row is in a processor's first cache."""

_STEP, _ODD, _OTHER_ODD = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

Words = TypeVar("Words", NDArray[np.int64], Tensor)


@torch.no_grad()
def of_host(tensor: Tensor) -> float:
    """Of a dense tensor in host memory, of any dtype: a whole number from 1 to 2^53."""
    data = np.from_dlpack(_bytes(tensor))  # after `Tensor.numpy` the storage could never be resized, as FSDP2 does
    words, rest = data[: len(data) // 8 * 8].view(np.int64), data[len(data) // 8 * 8 :]
    whole = len(words) // WIDTH * WIDTH
    sums = np.add.reduce(words[:whole].reshape(-1, WIDTH), axis=0)
    sums[: len(words) - whole] += words[whole:]
    if len(rest):
        at = len(words) - whole
        sums[at : at + 1] += int.from_bytes(rest.tobytes(), "little")
    filled = WIDTH if whole else min(WIDTH, len(words) + 1)  # the rest are zeros, and their part is known
    total = _scrambled(sums[:filled], _ROW[:filled]).sum(keepdims=True) + _OF_ZEROS[filled : filled + 1]
    return float(_folded(total)[0])


@torch.no_grad()
def on_device(tensors: Sequence[Tensor]) -> Tensor:
    """Of each of some tensors on one device, the same numbers: (n,) float64 there. The host does not wait."""
    sums = torch.stack([_sums(_bytes(each)) for each in tensors])
    totals = _scrambled(sums, _row(torch.arange(WIDTH, device=sums.device))).sum(1)
    return _folded(totals).double()


def _bytes(tensor: Tensor) -> Tensor:
    # A dimension of one element may have any stride in a contiguous tensor, and then cannot be viewed as bytes.
    flat = tensor.detach().contiguous().as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8)


def _sums(data: Tensor) -> Tensor:
    """(WIDTH,) int64 of bytes that lie together."""
    missing = -len(data) % 8
    if missing or data.storage_offset() % 8:
        data = torch.nn.functional.pad(data, (0, missing)) if missing else data.clone()
    words = data.view(torch.int64)
    whole = len(words) // WIDTH * WIDTH
    sums: Tensor = words[:whole].view(-1, WIDTH).sum(0)
    sums[: len(words) - whole] += words[whole:]
    return sums


def _scrambled(sums: Words, row: Words) -> Words:
    """Each column's sum in a way that is its own, by `row`, and that keeps different sums different."""
    return mixed(sums + row)


def mixed(words: Words) -> Words:
    """Every bit of a word depends on all; different words stay different (the last step of SplitMix64)."""
    words = (words ^ _above(words, 30)) * signed(_ODD)
    words = (words ^ _above(words, 27)) * signed(_OTHER_ODD)
    return words ^ _above(words, 31)


def _row(places: Words) -> Words:
    return mixed((places + 1) * signed(_STEP))


def _folded(words: Words) -> Words:
    """The upper 53 bits, from 1 on: what float64 holds exactly, and 0 is "not taken"."""
    return _above(mixed(words), 11) + 1


def _above(words: Words, bits: int) -> Words:
    """Shifted to the right as if they had no sign."""
    result: Any = (words >> bits) & ((1 << (64 - bits)) - 1)
    return result


def signed(constant: int) -> int:
    """The same 64 bits as torch and numpy have them."""
    return constant - (1 << 64) if constant >> 63 else constant


_ROW = _row(np.arange(WIDTH))
_OF_ZEROS = np.append(np.cumsum(_scrambled(np.zeros_like(_ROW), _ROW)[::-1])[::-1], 0)
"""What the columns from each on add where all their words are zero."""
