"""How a training begins: its loss function and what that is given, its weights, its inputs and its learning rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.faults.families.setups import LONG, loop, mlp
from tests.faults.fault import Job
from tests.faults.models import CLASSES, FEATURES

Loss = Callable[[Tensor, Tensor], Tensor]


def classes(
    job: Job, steps: int = LONG, *, loss: Loss = F.cross_entropy, last: nn.Module | None = None,
    first: nn.Module | None = None, weights: Callable[[Tensor], object] | None = None, times: float = 1.0,
    shift: float = 0.0, optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW, lr: float = 2e-3,
    schedule: Callable[[Any], Any] | None = None, **options: Any,
) -> None:  # fmt: skip
    """`first`, `last`: modules before and behind the net. `weights` initialises each parameter. Inputs are multiplied
    by `times` and moved by `shift`. `schedule`: of the optimizer, moved by the loss at each step."""
    net = mlp(act=nn.ReLU)
    if weights is not None:
        for each in net.parameters():
            weights(each)
    model = nn.Sequential(*[each for each in (first, net, last) if each is not None])
    mix = torch.randn(FEATURES, CLASSES)
    made = optimizer(model.parameters(), lr=lr, **options)
    plan, seen = None if schedule is None else schedule(made), [0.0]

    def before(step: int) -> None:
        if plan is not None and step:
            plan.step(seen[0])

    def loss_of(step: int) -> Tensor:
        x = torch.randn(64, FEATURES)
        value = loss(model(x * times + shift), (x @ mix).argmax(1))
        seen[0] = value.item()
        return value

    loop(job, model, made, loss_of, steps, before)


def plateau(mode: str, **options: Any) -> Callable[[Any], Any]:
    return lambda made: torch.optim.lr_scheduler.ReduceLROnPlateau(made, mode=mode, patience=8, **options)  # type: ignore[arg-type]


def nll_of(function: Callable[[Tensor], Tensor]) -> Loss:
    return lambda out, y: F.nll_loss(function(out), y)


def of(function: Callable[[Tensor], Tensor]) -> Loss:
    return lambda out, y: F.cross_entropy(function(out), y)


def binary(function: Callable[[Tensor], Tensor] = lambda out: out) -> Loss:
    return lambda out, y: F.binary_cross_entropy_with_logits(function(out), F.one_hot(y, CLASSES).float())


def smoothed(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, label_smoothing=0.1)


def unsure(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y) - 0.01 * torch.distributions.Categorical(logits=out).entropy().mean()


def train(job: Job, steps: int = LONG, *, setup: Callable[..., None], **arguments: Any) -> None:
    setup(job, steps, **arguments)


SGD = torch.optim.SGD

HEALTHY: dict[str, dict[str, Any]] = {
    "log_softmax in the model, and cross_entropy": {"setup": classes, "last": nn.LogSoftmax(-1)},
    "log_softmax in the model, and nll_loss": {"setup": classes, "last": nn.LogSoftmax(-1), "loss": F.nll_loss},
    "the logarithm of a softmax": {"setup": classes, "loss": nll_of(lambda out: out.softmax(-1).clamp(1e-6).log())},
    "logits over a temperature": {"setup": classes, "loss": of(lambda out: out / 0.7)},
    "labels that are smoothed": {"setup": classes, "loss": smoothed},
    "a penalty of low entropy": {"setup": classes, "loss": unsure},
    "a sigmoid for each class": {"setup": classes, "loss": binary()},
    "a ReLU behind the last layer": {"setup": classes, "last": nn.ReLU()},
    "bytes through a norm": {"setup": classes, "first": nn.BatchNorm1d(FEATURES), "times": 60.0, "shift": 120.0},
    "inputs five times as large": {"setup": classes, "times": 5.0},
    "Adam at 0.02": {"setup": classes, "lr": 0.02},
    "SGD at 0.3": {"setup": classes, "optimizer": SGD, "lr": 0.3},
    "a plateau that is looked for": {"setup": classes, "schedule": plateau("min", factor=0.5, min_lr=1e-5)},
    "all weights are small": {"setup": classes, "weights": lambda each: nn.init.normal_(each, std=0.01)},
}
