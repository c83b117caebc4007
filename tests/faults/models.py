"""Small models of each kind, with the batches and the loss that they learn from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batch = tuple[Any, Tensor]
CLASSES, FEATURES, WORDS, LENGTH = 4, 8, 16, 12


class MLP(nn.Module):
    """`middle` stands between `wo` and the normalisation."""

    def __init__(
        self, middle: nn.Module | None = None, act: Callable[[], nn.Module] = nn.ReLU, width: int = 32
    ) -> None:
        super().__init__()
        self.up, self.act, self.wo = nn.Linear(FEATURES, width), act(), nn.Linear(width, width)
        self.middle = nn.Identity() if middle is None else middle
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.middle(self.wo(self.act(self.up(x))))))


def deep(act: Callable[[], nn.Module], depth: int, width: int = 32) -> nn.Sequential:
    """Layers without normalisation or residuals."""
    inside = [layer for _ in range(depth) for layer in (nn.Linear(width, width), act())]
    return nn.Sequential(nn.Linear(FEATURES, width), act(), *inside, nn.Linear(width, CLASSES))


class Attention(nn.Module):
    """`mask(logits)` gives places that are left out. `called`: whether its softmax is a function, and no module."""

    def __init__(self, width: int, *, called: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.scores, self.softmax = Scores(), None if called else nn.Softmax(-1)
        self.mask: Callable[[Tensor], Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        logits = self.scores(self.q(x), self.k(x))
        if self.mask is not None:
            logits = logits.masked_fill(self.mask(logits), float("-inf"))
        weights = logits.softmax(-1) if self.softmax is None else self.softmax(logits)
        return self.out(weights @ self.v(x))


class Scores(nn.Module):
    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


class Block(nn.Module):
    def __init__(self, width: int, *, called: bool) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(width), Attention(width, called=called), nn.LayerNorm(width)
        self.ff_in, self.act, self.ff_out = nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.ff_out(self.act(self.ff_in(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, width: int = 24, depth: int = 2, *, called: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(Block(width, called=called) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Convolution(nn.Module):
    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.conv1, self.bn1, self.act1 = nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()
        self.conv2, self.bn2, self.act2 = nn.Conv2d(channels, channels, 3), nn.BatchNorm2d(channels), nn.ReLU()
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(self.bn1(self.conv1(x)))
        return self.head(self.act2(self.bn2(self.conv2(x))).mean((2, 3)))


class Recurrent(nn.Module):
    """A cell that is called once for each place of a sequence."""

    def __init__(self, act: Callable[[], nn.Module] = nn.Tanh, width: int = 16) -> None:
        super().__init__()
        self.inside, self.state, self.act = nn.Linear(FEATURES, width), nn.Linear(width, width), act()
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], self.state.in_features)
        for place in range(x.shape[1]):
            state = self.act(self.inside(x[:, place]) + self.state(state))
        return self.head(state)


def rows(seed: int, size: int = 16) -> Callable[[int], Batch]:
    """Points, and the class that a fixed matrix gives them."""
    chance, teacher = torch.Generator().manual_seed(seed + 1), torch.randn(FEATURES, CLASSES, generator=_fixed())

    def batch(step: int) -> Batch:
        x = torch.randn(size, FEATURES, generator=chance)
        return x, (x @ teacher).argmax(1)

    return batch


def images(seed: int, size: int = 8) -> Callable[[int], Batch]:
    """Noise over one of four pictures."""
    chance, pictures = torch.Generator().manual_seed(seed + 1), torch.randn(CLASSES, 3, 8, 8, generator=_fixed())

    def batch(step: int) -> Batch:
        y = torch.randint(CLASSES, (size,), generator=chance)
        return pictures[y] + torch.randn(size, 3, 8, 8, generator=chance), y

    return batch


def sequences(seed: int, size: int = 8, length: int = 8) -> Callable[[int], Batch]:
    """Sequences of points, classed by their sum."""
    chance, teacher = torch.Generator().manual_seed(seed + 1), torch.randn(FEATURES, CLASSES, generator=_fixed())

    def batch(step: int) -> Batch:
        x = torch.randn(size, length, FEATURES, generator=chance)
        return x, (x.sum(1) @ teacher).argmax(1)

    return batch


def tokens(seed: int, size: int = 4) -> Callable[[int], Batch]:
    """Chains in which a word says much about the next."""
    chance, table = (
        torch.Generator().manual_seed(seed + 1),
        torch.randn(WORDS, WORDS, generator=_fixed()).mul(2).softmax(-1),
    )

    def batch(step: int) -> Batch:
        chain = [torch.randint(WORDS, (size,), generator=chance)]
        for _ in range(LENGTH):
            chain.append(torch.multinomial(table[chain[-1]], 1, generator=chance)[:, 0])
        whole = torch.stack(chain, 1)
        return whole[:, :-1], whole[:, 1:]

    return batch


def _fixed() -> torch.Generator:
    return torch.Generator().manual_seed(99)


def cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    """Over the last dimension."""
    return F.cross_entropy(out.flatten(0, -2), y.flatten())


def scale(module: nn.Module, factor: float) -> None:
    """Multiply its weight."""
    with torch.no_grad():
        module.weight *= factor  # type: ignore[operator]
