"""The layouts, all in float32 beside what a recipe rounds."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from low_precision_trainings.quantize import LayerNorm, Linear, Recipe

VOCABULARY, LENGTH, BATCH = 64, 32, 8


class Block(nn.Module):
    """Attention and an MLP behind a norm each. `is_glu`: a SwiGLU, as of Llama."""

    def __init__(self, width: int, recipe: Recipe, *, is_glu: bool = False) -> None:
        super().__init__()
        self.heads = 4
        self.norm_1, self.norm_2 = LayerNorm(width, recipe), LayerNorm(width, recipe)
        self.qkv, self.proj = Linear(width, 3 * width, recipe), Linear(width, width, recipe)
        self.up, self.down = Linear(width, 4 * width, recipe), Linear(4 * width, width, recipe)
        self.gate = Linear(width, 4 * width, recipe) if is_glu else None

    def forward(self, values: Tensor) -> Tensor:
        rows, length, width = values.shape
        split = self.qkv(self.norm_1(values)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(*split, is_causal=True)
        values = values + self.proj(attended.transpose(1, 2).reshape(rows, length, width))
        normed = self.norm_2(values)
        if self.gate is None:
            return values + self.down(nn.functional.relu(self.up(normed)))
        return values + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


class Transformer(nn.Module):
    """Next tokens of a chain in which each token has few successors."""

    def __init__(self, recipe: Recipe, *, layers: int = 3, width: int = 64, is_glu: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, recipe, is_glu=is_glu) for _ in range(layers))
        self.norm = LayerNorm(width, recipe)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        values = self.embed(tokens)
        for block in self.blocks:
            values = block(values)
        logits: Tensor = self.head(self.norm(values))
        return logits


class Residual(nn.Module):
    """The proxy of arXiv 2506.20752: residual MLP blocks behind layer norms, which learn a teacher of their kind."""

    def __init__(self, recipe: Recipe, *, layers: int = 4, width: int = 64) -> None:
        super().__init__()
        self.norms = nn.ModuleList(LayerNorm(width, recipe) for _ in range(layers))
        self.ups = nn.ModuleList(Linear(width, 4 * width, recipe) for _ in range(layers))
        self.downs = nn.ModuleList(Linear(4 * width, width, recipe) for _ in range(layers))

    def forward(self, values: Tensor) -> Tensor:
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            values = values + down(nn.functional.gelu(up(norm(values))))
        return values


class Plain(nn.Module):
    """Layers one behind the other, without a way past them: the gradient is rounded as often as there are layers."""

    def __init__(self, recipe: Recipe, *, layers: int = 12, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Linear(width, width, recipe) for _ in range(layers))
        for layer in self.layers:
            nn.init.orthogonal_(layer.weight, math.sqrt(1.5))
        self.head = nn.Linear(width, 8)

    def forward(self, values: Tensor) -> Tensor:
        for layer in self.layers:
            values = torch.tanh(layer(values))
        result: Tensor = self.head(values)
        return result


class LoRA(nn.Module):
    """A frozen layer in the recipe's format with a low-rank adapter beside it that is left in float32."""

    def __init__(self, inputs: int, outputs: int, recipe: Recipe, rank: int = 4) -> None:
        super().__init__()
        self.base = Linear(inputs, outputs, recipe)
        self.base.weight.requires_grad_(False)
        self.lora_a, self.lora_b = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = self.base(values) + self.lora_b(self.lora_a(values))
        return result


class Tuned(nn.Module):
    """A token-wise classifier of frozen layers with adapters, behind an embedding whose padding is zeros."""

    def __init__(self, recipe: Recipe, *, layers: int = 3, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.layers = nn.ModuleList(LoRA(width, width, recipe) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        values = self.embed(tokens)
        for layer in self.layers:
            values = nn.functional.relu(layer(values)) + 0.5 * values
        logits: Tensor = self.head(values)
        return logits
