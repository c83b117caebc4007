"""A small T5-style decoder: RMSNorm before each sublayer, attention, and the gated-GELU feed-forward.

Shapes: B windows a batch, T bytes a window, D `width`, F `hidden`, V 256 byte values. Parameters are float32; under
fp16 autocast the linear layers and what they feed run in float16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rangewatch.commands.demo.corpus import VOCABULARY_SIZE


@dataclass(frozen=True)
class ModelShape:
    """Sizes of the demo model, chosen so that a step takes some 50 ms on one CPU core without fp16 instructions."""

    blocks: int = 6
    width: int = 64
    heads: int = 4
    hidden: int = 128
    length: int = 48
    dropout: float = 0.05


class RMSNorm(nn.Module):
    """Scales [B, T, D] to root mean square 1 over D, then by a learned weight [D]; no mean is taken away, as in T5.

    The mean is taken in float32: the square of an fp16 value above 255 is already Inf.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, states: Tensor) -> Tensor:
        """[B, T, D] in any float dtype -> [B, T, D] float32."""
        wide = states.float()
        return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class CausalSelfAttention(nn.Module):
    """Multi-head attention over the bytes so far; [B, T, D] -> [B, T, D], no biases."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        batch, length, width = states.shape
        split = self.qkv(states).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class DenseGatedGelu(nn.Module):
    """T5 v1.1's feed-forward, `wo(dropout(gelu(wi_0 x) * wi_1 x))`: [B, T, D] -> [B, T, F] -> [B, T, D], no biases.

    The product of two projections grows with the square of their weights, which is why fp16 overflows start here.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.wi_0 = nn.Linear(shape.width, shape.hidden, bias=False)
        self.wi_1 = nn.Linear(shape.width, shape.hidden, bias=False)
        self.act = nn.GELU(approximate="tanh")
        self.dropout = nn.Dropout(shape.dropout)
        self.wo = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        gated = self.act(self.wi_0(states)) * self.wi_1(states)
        return self.wo(self.dropout(gated))


class Block(nn.Module):
    """Attention then feed-forward, each after a norm and added to the residual stream [B, T, D]."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attn_norm, self.attn = RMSNorm(shape.width), CausalSelfAttention(shape)
        self.ff_norm, self.ff = RMSNorm(shape.width), DenseGatedGelu(shape)

    def forward(self, states: Tensor) -> Tensor:
        """[B, T, D] float32 -> [B, T, D] float32."""
        states = states + self.attn(self.attn_norm(states))
        return states + self.ff(self.ff_norm(states))


class ByteTransformer(nn.Module):
    """Predicts the next byte: int64 tokens [B, T] -> logits [B, T, V]."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY_SIZE, shape.width)
        self.position = nn.Embedding(shape.length, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.blocks))
        self.final_norm = RMSNorm(shape.width)
        self.lm_head = nn.Linear(shape.width, VOCABULARY_SIZE, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Int64 [B, T] -> logits [B, T, V], float16 under autocast."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        states = self.embed(tokens) + self.position(places)
        for block in self.blocks:
            states = block(states)
        return self.lm_head(self.final_norm(states))
