"""A small transformer in which overflows can be planted, each by a cause that real trainings have."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, HEADS = 16, 8, 2


class ScaledEmbedding(nn.Embedding):
    """An embedding that multiplies what it looks up, as several translation models do."""

    scale = 1.0

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * self.scale


class Attention(nn.Module):
    """Self-attention written out: its logits are no module's output."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        return self.o(mixed.transpose(1, 2).flatten(2))


class Root(nn.Module):
    """Keeps x and adds sqrt(|x - shift|): finite everywhere, with an infinite gradient at the shift."""

    def __init__(self) -> None:
        super().__init__()
        self.shift: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return x if self.shift is None else x + (x - self.shift).abs().sqrt()


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.up, self.act, self.root, self.down = nn.Linear(WIDTH, 16), nn.ReLU(), Root(), nn.Linear(16, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.down(self.root(self.act(self.up(x))))


class Scaled(nn.Module):
    """Multiplies, and returns a dictionary."""

    factor = 1.0

    def forward(self, *, hidden: Tensor) -> dict[str, Tensor]:
        return {"hidden": hidden * self.factor}


class Head(nn.Module):
    """Takes its input by name."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, *, hidden: Tensor) -> Tensor:
        return self.logits(hidden)


class Transformer(nn.Module):
    """Tokens int64 [B, L] -> the loss of predicting them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = ScaledEmbedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.scaled, self.head = Scaled(), Head()
        self.between_blocks: Callable[[Tensor], Tensor] = lambda x: x
        self.before_head: Callable[[Tensor], Tensor] = lambda x: x

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        x = self.blocks[1](self.between_blocks(self.blocks[0](x)))
        hidden = self.before_head(self.scaled(hidden=x)["hidden"])
        return nn.functional.cross_entropy(self.head(hidden=hidden).flatten(0, 1), ids.flatten())
