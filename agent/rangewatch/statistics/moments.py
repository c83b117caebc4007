"""How much of a parameter Adam's eps decides: counts over `exp_avg` and `exp_avg_sq`, without waiting for a device.

Adam divides by `sqrt(exp_avg_sq / bias_correction2) + eps`, where `bias_correction2` is `1 - beta2 ** step`
(torch.optim.adam, `_single_tensor_adam`; with amsgrad `max_exp_avg_sq` stands for `exp_avg_sq`). Where the root is
below eps an element moves by the learning rate times `exp_avg / eps` at most: less, the smaller its gradient is.

Counted are the elements that Adam would move without its eps: those whose `exp_avg` is above 1 % of the root. In
others, such as the rows of an embedding that no batch has had for a while, nothing is lost.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rangewatch.core import limits

MOVED = 0.01
"""Of the root of `exp_avg_sq`: smaller elements of `exp_avg` move by less than 1 % of the learning rate."""


def bias_correction2(beta2: Any, step: Any) -> Any:
    """`1 - beta2 ** step`: a number, or a tensor of the device that holds the step, as `capturable` and `fused` do."""
    beta2, step = (each.item() if isinstance(each, Tensor) and each.is_cpu else each for each in (beta2, step))
    return 1.0 - beta2**step


@torch.no_grad()
def beside_eps(exp_avg: Tensor, exp_avg_sq: Tensor, eps: float, correction2: Any) -> Tensor:
    """(3,) float64 on their device (float32 on MPS): `statistics.BESIDE_EPS` of two tensors of one shape and device.

    `eps`: that of the optimizer. `correction2`: see `bias_correction2`.
    """
    bound = eps * correction2**0.5
    total = torch.zeros(
        3, dtype=torch.float32 if exp_avg.device.type == "mps" else torch.float64, device=exp_avg.device
    )
    for average, square in _pieces(exp_avg, exp_avg_sq):
        if square.itemsize < 4:  # eps and its square are nothing in 16 bits
            average, square = average.float(), square.float()
        root = square.sqrt()
        moved = average.abs() > MOVED * root
        counts = moved.sum(), (moved & (root < bound)).sum(), (moved & (root == 0)).sum()
        total += torch.stack(counts)
    return total


def _pieces(first: Tensor, second: Tensor) -> Any:
    if first.numel() <= limits.DEVICE_BLOCK_ELEMENTS or not (first.is_contiguous() and second.is_contiguous()):
        return [(first, second)]
    pieces = (torch.split(each.view(-1), limits.DEVICE_BLOCK_ELEMENTS) for each in (first, second))
    return zip(*pieces, strict=True)
