"""The models that `overhead.py` trains: the T5 with 291 modules of the examples, and a GPT. Nothing is downloaded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Workload:
    """A model with `compute_loss(called, batch)`, where `called` is the model or what `torch.compile` made of it."""

    title: str
    model: nn.Module
    next_batch: Callable[[], Any]
    compute_loss: Callable[[Any, Any], Tensor]
    dtype: torch.dtype
    """Of autocast; float32 is without."""

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device


class Attention(nn.Module):
    """Causal self-attention, [B, L, D] -> [B, L, D]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.projection(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Gpt(nn.Module):
    """GPT-2's shape, with the output layer tied to the embedding; int64 [B, L] -> logits [B, L, vocabulary]."""

    def __init__(self, *, layers: int, width: int, heads: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def t5(device: str) -> Workload:
    """The T5 of the examples in float32; bf16 autocast on CUDA. Needs transformers, as no other does."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
    from t5_model import SpanCorruption, build_model

    batch, length = (32, 512) if device == "cuda" else (4, 128)
    batches = SpanCorruption(batch=batch, length=length)
    model = build_model("base291").to(device).train()
    return Workload(
        _title("T5", model, batch, length),
        model,
        lambda: {name: tensor.to(device) for name, tensor in batches().items()},
        lambda called, inputs: called(**inputs).loss,
        torch.bfloat16 if device == "cuda" else torch.float32,
    )


def gpt(device: str) -> Workload:
    """GPT-2 medium with weights in bf16 (354 million parameters) on CUDA, one of 11 million in float32 elsewhere."""
    return _gpt(device, width=1024, batch=16)


def gpt_1b(device: str) -> Workload:
    """GPT-3's 1.3 billion parameters in bf16 on CUDA; elsewhere the same as `gpt`."""
    return _gpt(device, width=2048, batch=8)


def _gpt(device: str, *, width: int, batch: int) -> Workload:
    is_large = device == "cuda"
    layers, heads, length, vocabulary = (24, 16, 1024, 50304) if is_large else (6, 6, 128, 384)
    width, batch = (width, batch) if is_large else (384, 4)
    model = Gpt(layers=layers, width=width, heads=heads, length=length, vocabulary=vocabulary)
    model = model.to(device, torch.bfloat16 if is_large else torch.float32).train()
    ids = torch.randint(vocabulary, (batch, length + 1), device=device)  # the same each step: nothing depends on it
    return Workload(_title("GPT", model, batch, length), model, lambda: ids, next_token_loss, torch.float32)


def next_token_loss(called: Any, ids: Tensor) -> Tensor:
    return F.cross_entropy(called(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def _title(name: str, model: nn.Module, batch: int, length: int) -> str:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    modules = sum(1 for _ in model.modules())
    return f"{name}, {modules} modules, {parameters / 1e6:.0f} M parameters, batch {batch} x {length}"


WORKLOADS = {"t5": t5, "gpt": gpt, "gpt-1b": gpt_1b}
