"""A small language model, and the operations between ranks of tensor and sequence parallelism by hand."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

VOCABULARY, WIDTH, LENGTH, ROWS, LAYERS = 32, 8, 8, 4, 2


class Block(nn.Module):
    """`split`: among how many ranks its inner width is divided."""

    def __init__(self, dropout: float = 0.0, split: int = 1) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH // split), nn.Linear(4 * WIDTH // split, WIDTH, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Tensor) -> Tensor:
        return values + self.dropout(self.down(torch.tanh(self.up(self.norm(values)))))


class Model(nn.Module):
    def __init__(self, dropout: float = 0.0, layers: int = LAYERS, block: Any = Block) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(block(dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        values = self.embed(tokens)
        for block in self.blocks:
            values = block(values)
        return self.head(self.norm(values))


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """Of the same token again, so that there is something to learn."""
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())


class Copy(torch.autograd.Function):
    """What is the same on all ranks goes into what each has a part of: the gradient's parts are added up."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return values

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Reduce(torch.autograd.Function):
    """Each rank's part of a sum becomes the sum."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Any) -> Tensor:
        values = values.contiguous().clone()
        dist.all_reduce(values, group=group)
        return values

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Gather(torch.autograd.Function):
    """Parts of the sequence become the whole; the gradient's parts are added up, and each rank keeps its own."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _gathered(values, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=ctx.group)
        return own_part(gradient, ctx.group), None


class Scatter(torch.autograd.Function):
    """Each rank's part of a sum becomes the sum of its part of the sequence."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Any) -> Tensor:
        ctx.group = group
        values = values.contiguous().clone()
        dist.all_reduce(values, group=group)
        return own_part(values, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _gathered(gradient, ctx.group), None


def own_part(values: Tensor, group: Any) -> Tensor:
    """Of the second dimension."""
    return values.chunk(dist.get_world_size(group), 1)[dist.get_rank(group)].contiguous()


def _gathered(values: Tensor, group: Any) -> Tensor:
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, values.contiguous(), group=group)
    return torch.cat(parts, 1)


class SplitBlock(Block):
    """Tensor parallelism by hand; `is_sequence`: norms and dropout each see a part of the sequence."""

    def __init__(self, dropout: float, group: Any, *, is_sequence: bool) -> None:
        super().__init__(dropout, dist.get_world_size(group))
        self.group, self.is_sequence = group, is_sequence
        for parameter, dim in ((self.up.weight, 0), (self.up.bias, 0), (self.down.weight, 1)):
            parameter.tensor_model_parallel, parameter.partition_dim = True, dim  # as Megatron marks them

    def forward(self, values: Tensor) -> Tensor:
        before, after = (Gather, Scatter) if self.is_sequence else (Copy, Reduce)
        inner = torch.tanh(self.up(before.apply(self.norm(values), self.group)))
        return values + self.dropout(after.apply(self.down(inner), self.group))


class Experts(nn.Module):
    """Expert parallelism by hand, as of tokens that all ranks of `group` have: each adds what its experts make of
    them. `weight`: this rank's experts, a part of all along the first dimension."""

    def __init__(self, group: Any, count: int) -> None:
        super().__init__()
        self.group, self.count = group, count
        self.norm, self.router = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, count, bias=False)
        self.weight = nn.Parameter(torch.randn(count // dist.get_world_size(group), WIDTH, WIDTH) / WIDTH**0.5)
        self.leaves_router_alone = False

    def forward(self, values: Tensor) -> Tensor:
        weight: Any = self.weight
        weight = weight.to_local() if hasattr(weight, "to_local") else weight
        inner = self.norm(values)
        shares = self.router(inner).softmax(-1)
        if not self.leaves_router_alone:
            inner, shares = Copy.apply(inner, self.group), Copy.apply(shares, self.group)
        first = dist.get_rank(self.group) * len(weight)
        mine = shares[..., first : first + len(weight)]
        made = torch.einsum("blw,ewv,ble->blv", inner, weight, mine)
        return values + Reduce.apply(torch.tanh(made), self.group)
