"""How a training begins: its loss function and what that is given, its weights, its inputs and its learning rate."""

from __future__ import annotations

import copy
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


def divergence(function: Callable[[Tensor, int], Tensor]) -> Loss:
    """From targets that are nearly sure."""
    return lambda out, y: F.kl_div(
        function(out, -1), F.one_hot(y, CLASSES) * 0.94 + 0.06 / CLASSES, reduction="batchmean"
    )


def smoothed(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, label_smoothing=0.1)


def unsure(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y) - 0.01 * torch.distributions.Categorical(logits=out).entropy().mean()


class Residual(nn.Module):
    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        for at in range(0, len(self.layers), 2):
            x = x + self.layers[at + 1](self.layers[at](x))
        return x


class Cut(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


def deep(
    job: Job, steps: int = LONG, *, depth: int, act: Callable[[], nn.Module] = nn.ReLU, is_residual: bool = False,
    weights: Callable[[Tensor], object] | None = None, cut: bool = False,
) -> None:  # fmt: skip
    """`cut`: what the first half gives is detached."""
    body = nn.Sequential(*[each() for _ in range(depth) for each in (lambda: nn.Linear(48, 48), act)])
    middle: list[nn.Module] = [Residual(body)] if is_residual else [body]
    middle += [Cut()] * cut
    model = nn.Sequential(nn.Linear(FEATURES, 48), *middle, nn.Linear(48, CLASSES))
    for each in model.parameters() if weights is not None else ():
        if each.dim() > 1:
            weights(each)  # type: ignore[misc]
    mix = torch.randn(FEATURES, CLASSES)
    made = torch.optim.AdamW(model.parameters(), 2e-3)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(64, FEATURES)
        return F.cross_entropy(model(x), (x @ mix).argmax(1))

    loop(job, model, made, loss_of, steps)


def prices(job: Job, steps: int = LONG, *, times: float = 1.0, shift: float = 0.0, lr: float = 2e-3) -> None:
    """A regression whose targets have that deviation and that mean."""
    model, mix = mlp(out=1), torch.randn(FEATURES, 1)
    made = torch.optim.AdamW(model.parameters(), lr)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(64, FEATURES)
        return F.mse_loss(model(x), torch.tanh(x @ mix) * times + shift)

    loop(job, model, made, loss_of, steps)


def clipped(job: Job, steps: int = LONG, *, most: float, optimizer: Any = torch.optim.SGD, lr: float = 0.1) -> None:
    model, mix = mlp(), torch.randn(FEATURES, CLASSES)
    made = optimizer(model.parameters(), lr)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(64, FEATURES)
        return F.cross_entropy(model(x), (x @ mix).argmax(1))

    loop(job, model, made, loss_of, steps, clip=lambda: nn.utils.clip_grad_norm_(model.parameters(), most))


def copied(job: Job, steps: int = LONG) -> None:
    """The optimizer has the parameters of another model like it."""
    model, other, mix = mlp(), mlp(), torch.randn(FEATURES, CLASSES)
    made = torch.optim.AdamW(other.parameters(), 2e-3)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(64, FEATURES)
        return F.cross_entropy(model(x), (x @ mix).argmax(1))

    loop(job, model, made, loss_of, steps)


class Pictured(nn.Module):
    """Names of its parameters are those of a checkpoint, or have another module before them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp(out=32), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def resumed(job: Job, steps: int = LONG, *, at: int, fits: bool, has_optimizer: bool = True) -> None:
    """At a step the model is made anew and the checkpoint loaded, strict=False, under names that fit or do not."""
    model, mix = Pictured(), torch.randn(FEATURES, CLASSES)
    made = torch.optim.AdamW(model.parameters(), 2e-3)
    with job.attach(model, made) as watch:
        for step in range(steps):
            if step == at:
                prefix = "" if fits else "module."
                saved = {prefix + name: each.clone() for name, each in model.state_dict().items()}
                state = copy.deepcopy(made.state_dict())
                model.load_state_dict(Pictured().state_dict())
                model.load_state_dict(saved, strict=False)
                if has_optimizer:
                    made.load_state_dict(state)
            x = torch.randn(64, FEATURES)
            loss = F.cross_entropy(model(x), (x @ mix).argmax(1))
            made.zero_grad()
            loss.backward()
            made.step()
            watch.log(loss=loss.item())


def rare(job: Job, steps: int = LONG, *, share: float) -> None:
    """A focal loss of alarms that most batches have none of: next to nothing, and far more where there is one."""
    model = mlp(out=1)
    made = torch.optim.AdamW(model.parameters(), 2e-3)
    nn.init.constant_(model[-1].bias, -5.0)

    def loss_of(step: int) -> Tensor:
        x, y = torch.randn(48, FEATURES), (torch.rand(48) < share).float()
        x[:, 0] += 2 * y
        logit = model(x).squeeze(1)
        sure = torch.where(y > 0, logit.sigmoid(), 1 - logit.sigmoid())
        each = F.binary_cross_entropy_with_logits(logit, y, reduction="none")
        return ((1 - sure) ** 2 * each).mean()

    loop(job, model, made, loss_of, steps)


def in_eval(job: Job, steps: int = LONG, *, norms: bool) -> None:
    """What is loaded is in eval(), and stays so."""
    layers: list[nn.Module] = [nn.Linear(FEATURES, 48), nn.BatchNorm1d(48) if norms else nn.Dropout(0.2), nn.GELU()]
    model, mix = nn.Sequential(*layers, nn.Linear(48, CLASSES)).eval(), torch.randn(FEATURES, CLASSES)
    made = torch.optim.AdamW(model.parameters(), 2e-3)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(64, FEATURES)
        return F.cross_entropy(model(x), (x @ mix).argmax(1))

    loop(job, model, made, loss_of, steps)


class Reader(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        self.words, self.layers, self.out = nn.Embedding(words, 64), nn.ModuleList([layer]), nn.Linear(64, words)
        for _ in range(2):
            self.layers.append(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0))

    def forward(self, ids: Tensor) -> Tensor:
        h = self.words(ids)
        for each in self.layers:
            h = each(h)
        return self.out(h)


def reader(job: Job, steps: int = LONG, *, lr: float) -> None:
    """Of each word and the one before, their sum."""
    model, words = Reader(30), 30
    made = torch.optim.Adam(model.parameters(), lr)

    def loss_of(step: int) -> Tensor:
        ids = torch.randint(0, words, (24, 12))
        return F.cross_entropy(model(ids).flatten(0, 1), (ids + ids.roll(1, 1)).remainder(words).flatten())

    loop(job, model, made, loss_of, steps)


def train(job: Job, steps: int = LONG, *, setup: Callable[..., None], **arguments: Any) -> None:
    setup(job, steps, **arguments)


SGD = torch.optim.SGD

HEALTHY: dict[str, dict[str, Any]] = {
    "log_softmax in the model, and cross_entropy": {"setup": classes, "last": nn.LogSoftmax(-1)},
    "log_softmax in the model, and nll_loss": {"setup": classes, "last": nn.LogSoftmax(-1), "loss": F.nll_loss},
    "the logarithm of a softmax": {"setup": classes, "loss": nll_of(lambda out: out.softmax(-1).clamp(1e-6).log())},
    "logits over a temperature": {"setup": classes, "loss": of(lambda out: out / 0.7)},
    "a divergence from soft targets": {"setup": classes, "loss": divergence(torch.log_softmax)},
    "labels that are smoothed": {"setup": classes, "loss": smoothed},
    "a penalty of low entropy": {"setup": classes, "loss": unsure},
    "a sigmoid for each class": {"setup": classes, "loss": binary()},
    "a ReLU behind the last layer": {"setup": classes, "last": nn.ReLU()},
    "bytes through a norm": {"setup": classes, "first": nn.BatchNorm1d(FEATURES), "times": 60.0, "shift": 120.0},
    "inputs five times as large": {"setup": classes, "times": 5.0},
    "Adam at 0.02": {"setup": classes, "lr": 0.02},
    "SGD at 0.3": {"setup": classes, "optimizer": SGD, "lr": 0.3},
    "a plateau that is looked for": {"setup": classes, "schedule": plateau("min", factor=0.5, min_lr=1e-5)},
    "deep and residual": {"setup": deep, "depth": 24, "is_residual": True},
    "deep, and initialised for it": {"setup": deep, "depth": 24, "weights": nn.init.kaiming_normal_},
    "deep, of a slope of 1": {"setup": deep, "depth": 12, "act": nn.LeakyReLU, "weights": nn.init.orthogonal_},
    "prices that are normalised": {"setup": prices},
    "targets of ten": {"setup": prices, "times": 3.0, "shift": 10.0},
    "a clip that is reached at each step": {"setup": clipped, "most": 0.05},
    "a clip that is far too low for Adam": {"setup": clipped, "most": 1e-3, "optimizer": torch.optim.AdamW, "lr": 2e-3},
    "a reader at a usual rate": {"setup": reader, "lr": 1e-3},
    "resumed under names that fit": {"setup": resumed, "at": 110, "fits": True},
    "alarms that few batches have": {"setup": rare, "share": 0.006},
    "dropout that is left out from the start": {"setup": in_eval, "norms": False},
    "all weights are small": {"setup": classes, "weights": lambda each: nn.init.normal_(each, std=0.01)},
}
