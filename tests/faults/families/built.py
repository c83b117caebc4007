"""Models that are changed between being made and being trained: parameters and buffers that are not what they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from tests.faults.families.setups import LONG, loop
from tests.faults.fault import Job


class Filters(nn.Module):
    """Convolutions over time."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(1 if at == 0 else 24, 24, 3, padding=1) for at in range(3))
        self.out = nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None]
        for conv in self.convs:
            x = F.relu(conv(x))
        return self.out(x.mean(2))


def normed(job: Job, steps: int = LONG, *, is_late: bool, with_other: bool = False) -> None:
    """Weight normalisation is put on the convolutions before the optimizer is made, or after. `with_other`: it has
    parameters of its own, of which none gets a gradient."""
    model, mix = Filters(), torch.randn(32)
    if not is_late:
        _norm(model)
    held = list(model.parameters()) + [nn.Parameter(torch.ones(8))] * with_other
    optimizer = torch.optim.Adam(held, 2e-3)
    if is_late:
        _norm(model)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(48, 32)
        return F.mse_loss(model(x), torch.sin(x * mix).mean(1, keepdim=True) * 4)

    loop(job, model, optimizer, loss_of, steps)


def _norm(model: Filters) -> None:
    for conv in model.convs:
        weight_norm(conv)


class Blocks(nn.Module):
    """Residual layers in a plain list; `judge`: another list with a network that is to stay."""

    def __init__(self, blocks: Any, judge: Any = ()) -> None:
        super().__init__()
        self.into, self.blocks, self.judge, self.out = nn.Linear(32, 24), blocks, judge, nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        for block in self.blocks:
            h = h + block(h.relu())
        return self.out(h)


def listed(job: Job, steps: int = LONG, *, kind: Callable[[Any], Any], judged: bool = False) -> None:
    """`kind` makes of a list what holds the blocks. `judged`: a network in a list and in `eval()` has a part in the
    loss, and nobody froze it."""
    judge = [nn.Sequential(nn.Linear(1, 8), nn.Tanh()).eval()] if judged else []
    model, mix = Blocks(kind([nn.Linear(24, 24) for _ in range(3)]), judge), torch.randn(32)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(48, 32)
        y = torch.sin(x * mix).mean(1, keepdim=True) * 4
        prediction = model(x)
        return F.mse_loss(prediction, y) + sum(F.mse_loss(each(prediction), each(y)) for each in judge)

    loop(job, model, optimizer, loss_of, steps)


class Turned(nn.Module):
    """Angles of places, which no checkpoint has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("frequency", 100.0 ** (-torch.arange(0, width, 2) / width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        angle = torch.outer(torch.arange(x.shape[1]).float(), self.frequency)
        first, second = x.chunk(2, -1)
        return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], -1)


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.turned, self.out = nn.Linear(6, 16), Turned(16), nn.Linear(16, 4)
        self.register_buffer("mask", torch.full((12, 12), float("-inf")).triu(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.turned(self.inside(x))
        return self.out(torch.softmax(h @ h.transpose(1, 2) / 4 + self.mask, -1) @ h).mean(1)


def emptied(job: Job, steps: int = LONG, *, at: int, is_anew: bool) -> None:
    """At a step memory is taken anew and the checkpoint read into it. `is_anew`: what it does not have is computed."""
    model, mix = Reader(), torch.randn(6, 4)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)

    def before(step: int) -> None:
        if step != at:
            return
        saved = {name: each.clone() for name, each in model.state_dict().items()}
        buffers = {name: each.clone() for name, each in model.named_buffers()}
        model.to_empty(device="cpu")
        model.load_state_dict(saved)
        for name, each in model.named_buffers():
            each.copy_(buffers[name])
        if not is_anew:
            model.turned.frequency.view(torch.int32)[2:4].fill_(-1)  # what happened to lie there

    def loss_of(step: int) -> Tensor:
        x = torch.randn(32, 12, 6)
        return F.cross_entropy(model(x), (x[:, 3] @ mix).argmax(1))

    loop(job, model, optimizer, loss_of, steps, before)


def train(job: Job, steps: int = LONG, *, setup: Callable[..., None], **arguments: Any) -> None:
    setup(job, steps, **arguments)


HEALTHY: dict[str, dict[str, Any]] = {
    "layers in a ModuleList": {"setup": listed, "kind": nn.ModuleList},
    "a network that is to stay, hidden in a list": {"setup": listed, "kind": nn.ModuleList, "judged": True},
    "weight normalisation before the optimizer": {"setup": normed, "is_late": False},
    "an optimizer with a parameter of nobody's": {"setup": normed, "is_late": False, "with_other": True},
    "memory taken anew, and all computed": {"setup": emptied, "at": 120, "is_anew": True},
}
