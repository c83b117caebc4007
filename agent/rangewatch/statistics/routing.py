"""What a router has decided, read from what it returns: tokens by expert and the entropy, without waiting for a device.

Routers return one of these, beside weights that do not matter here:
- places, (tokens, top_k) whole numbers of experts: Transformers, torchtitan; below 0 for a token that was dropped;
- a mask, (..., experts) of bool or of 0 and 1: Megatron's routing map, Switch Transformers, with zeros where a token
  was dropped; or (tokens, experts, capacity), as DeepSpeed's;
- only logits, (..., experts): the `top_k` largest are chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

SAMPLE_TOKENS = 1_024
"""Of a call, evenly spread, whose entropy is taken: a softmax of all would be as dear as the router itself."""


class Choice(NamedTuple):
    """How the output of a router is read: the leaf `at` of it is `what`. `logits`: the leaf that has the logits, -1
    where none has. `top_k`: 0 where that is not known.
    """

    what: Literal["places", "mask", "capacity", "logits"]
    at: int
    experts: int
    top_k: int
    logits: int = -1

    @property
    def sees_drops(self) -> bool:
        """Whether a token that is dropped can be told from the output."""
        return self.what in ("mask", "capacity") and self.top_k > 0


def interpret(leaves: Sequence[Any], experts: int, top_k: int, *, is_linear: bool) -> Choice | None:
    """How these leaves of a router's output are to be read; None where they do not say who goes where.

    `experts` and `top_k` are what is known of the router, 0 where it is not. `is_linear`: it is a linear layer, whose
    last (..., experts) output is the logits.
    """
    tensors = [(at, each) for at, each in enumerate(leaves) if isinstance(each, Tensor) and each.dim()]
    floats = [(at, each) for at, each in tensors if each.is_floating_point()]
    experts = experts or _experts_seen(tensors)
    wide = [at for at, each in floats if each.dim() > 1 and each.shape[-1] == experts]
    for at, each in tensors:
        what = _kind(each, experts, top_k)
        if what == "places":
            # (weights, places) and wide scores: the wide ones are what the weights were made of, the scores or the
            # logits. Only with weights of their own beside them they are the logits.
            has_weights = any(other.shape == each.shape for _, other in floats)
            logits = wide[0] if len(wide) == 1 and (has_weights and each.shape[-1] != experts) else -1
            return Choice("places", at, experts, int(each.shape[-1]) if each.dim() > 1 else 1, logits)
        if what is not None:
            is_dense = what == "mask" and not each.dtype.is_floating_point and each.dtype is not torch.bool
            return Choice(what, at, experts, top_k, wide[-1] if is_dense and wide else -1)
    if wide and 0 < top_k <= experts and (is_linear or len(wide) == 1):
        return Choice("logits", wide[-1], experts, top_k, wide[-1] if is_linear else -1)
    return None


def _experts_seen(tensors: Sequence[tuple[int, Tensor]]) -> int:
    """The last dimension of scores, which is more than that of chosen places; 0 where none is."""
    wide = max((int(each.shape[-1]) for _, each in tensors if each.is_floating_point() and each.dim() > 1), default=0)
    whole = [each for _, each in tensors if not each.is_floating_point() and each.dtype is not torch.bool]
    return wide if all(wide > int(each.shape[-1]) for each in whole) else 0


def _kind(tensor: Tensor, experts: int, top_k: int) -> Literal["places", "mask", "capacity"] | None:
    if tensor.is_floating_point() or tensor.is_complex() or experts < 2:
        return None
    if tensor.dim() > 1 and tensor.shape[-1] == experts and top_k != experts:
        return "mask"
    if tensor.dim() == 3 and tensor.shape[1] == experts:
        return "capacity"
    if tensor.dtype is torch.bool:
        return None
    if tensor.dim() > 1 and tensor.shape[-1] <= experts and (not top_k or tensor.shape[-1] == top_k):
        return "places"
    return "places" if tensor.dim() == 1 and top_k == 1 and tensor.shape[0] != experts else None


def tokens(leaves: Sequence[Any], choice: Choice) -> int:
    """How many tokens were routed."""
    tensor: Tensor = leaves[choice.at]
    if choice.what == "capacity":
        return int(tensor.shape[0])
    return tensor.numel() // (choice.top_k if choice.what == "places" else choice.experts)


@torch.no_grad()
def counts(leaves: Sequence[Any], choice: Choice) -> Tensor:
    """(1 + experts,) int64 on the device of the output: places that were refused, then tokens of each expert."""
    tensor: Tensor = leaves[choice.at].detach()
    if choice.what == "logits":
        tensor = tensor.topk(choice.top_k, dim=-1).indices
    if choice.what in ("places", "logits"):
        flat = tensor.reshape(-1).long() + 1
        flat = torch.where((flat < 0) | (flat > choice.experts), 0, flat)
        if flat.is_cpu:
            return torch.bincount(flat, minlength=choice.experts + 1)
        # bincount would wait for a device; index_add_ has a deterministic form where that was asked for.
        zeros = torch.zeros(choice.experts + 1, dtype=torch.int64, device=flat.device)
        return zeros.index_add_(0, flat, torch.ones_like(flat))
    chosen = (tensor != 0).any(-1) if choice.what == "capacity" else tensor.reshape(-1, choice.experts) != 0
    by_expert = chosen.sum(0)
    missing = choice.top_k * len(chosen) - by_expert.sum() if choice.top_k else by_expert.sum() * 0
    return torch.cat([missing.clamp_min(0).reshape(1), by_expert])


def sampled(logits: Tensor) -> Tensor:
    """(rows, experts) of the logits: at most `SAMPLE_TOKENS` rows, evenly spread."""
    rows = logits.detach().reshape(-1, logits.shape[-1])
    return rows[:: max(1, math.ceil(len(rows) / SAMPLE_TOKENS))]


@torch.no_grad()
def entropy_millibits(rows: Tensor) -> Tensor:
    """(1,) float32 on their device: the sum of the entropies of the softmax of each row, rows with NaN being 0.

    A whole number, so that ranks and steps add up to the same in any order.
    """
    nats = torch.special.entr(rows.float().softmax(-1)).sum(-1)
    return (nats.nan_to_num(nan=0.0).sum().reshape(1) * (1000 / math.log(2))).round()
