"""Trainings of small models whose setup is what is to be judged: mode, precision, first weights, clips, groups of the
optimizer, masks and sizes. Each is a loop of its own; with `wrong` it has its fault, without it is as it should be.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.faults.fault import Job, Plant
from tests.faults.models import CLASSES, FEATURES, WORDS, Convolution, Transformer, images, rows, tokens

Plan = dict[str, Any]
LONG = 200


def mlp(width: int = 64, act: Callable[[], nn.Module] = nn.GELU, out: int = CLASSES, given: int = FEATURES) -> Any:
    return nn.Sequential(nn.Linear(given, width), act(), nn.Linear(width, width), act(), nn.Linear(width, out))


def loop(
    job: Job, model: nn.Module, optimizer: Any, loss_of: Callable[[int], Tensor], steps: int = LONG,
    before: Callable[[int], None] = lambda step: None, clip: Callable[[], None] = lambda: None, **options: Any,
) -> None:  # fmt: skip
    """`loss_of(step)` calls the model."""
    with job.attach(model, optimizer, **options) as watch:
        for step in range(steps):
            before(step)
            loss = loss_of(step)
            optimizer.zero_grad()
            loss.backward()
            clip()
            optimizer.step()
            watch.log(loss=loss.item())


# The mode


class Dropped(nn.Module):
    """Dropout, and no running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.dropout, self.head = mlp(out=32), nn.Dropout(0.2), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(torch.tanh(self.body(x))))


def picture_net(job: Job, steps: int = LONG, *, mode: Callable[[nn.Module, int], None] = lambda m, s: None) -> None:
    """`mode(model, step)` is called before each step."""
    model, data = Convolution(), images(job.seed, 16)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)

    def loss_of(step: int) -> Tensor:
        x, y = data(step)
        return F.cross_entropy(model(x), y)

    loop(job, model, optimizer, loss_of, steps, lambda step: mode(model, step))


def dropout_net(job: Job, steps: int = LONG, *, at: int | None = None, maps: bool = False) -> None:
    """Evaluated each 20 steps. `at`: the evaluation after which nobody calls `train()`. `maps`: what the model looks at
    is drawn at each step, by a backward in `eval()`."""
    model, data = Dropped(), rows(job.seed)
    optimizer = torch.optim.SGD(model.parameters(), 2e-2, momentum=0.9)

    def before(step: int) -> None:
        if step and not step % 20:
            model.eval()
            with torch.inference_mode():
                model(data(10_000)[0])
            if at is None or step < at:
                model.train()
        if maps:
            model.eval()
            x = data(step)[0].requires_grad_()
            model(x).max(1).values.sum().backward()
            model.train()

    def loss_of(step: int) -> Tensor:
        x, y = data(step)
        return F.cross_entropy(model(x), y)

    loop(job, model, optimizer, loss_of, steps, before)


def frozen_norms(model: nn.Module, step: int) -> None:
    """From step 60 on batch norms alone go by their running statistics."""
    model.train()
    for each in model.modules():
        if step >= 60 and isinstance(each, nn.BatchNorm2d):
            each.eval()


def left_in_eval(model: nn.Module, step: int) -> None:
    if step == 60:
        model.eval()


def head_of_a_frozen_net(job: Job, steps: int = LONG, *, at: int | None = None) -> None:
    """The body is frozen and in `eval()`; the head has a dropout. `at`: from then on the head is in `eval()` too, and
    the whole is, with an update each second backward."""
    model, data = Dropped(), rows(job.seed)
    model.body.requires_grad_(False)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], 1e-3)
    with job.attach(model, optimizer) as watch:
        for step in range(steps):
            model.train()
            model.body.eval()
            if at is not None and step >= at:
                model.eval()
            for part in (0, 1):
                x, y = data(2 * step + part)
                loss = F.cross_entropy(model(x), y) / 2
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.log(loss=2 * loss.item())


# 16 bits


def small_targets(job: Job, steps: int = LONG, *, size: float, scaler: Any = None, half: bool = False) -> None:
    """A field of values of about `size`, in float16, with its last layer at zero at first. `half`: weights too."""
    field = torch.randn(FEATURES, 256)
    model = mlp(out=256)
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    if half:
        model.half()
    optimizer = torch.optim.SGD(model.parameters(), 0.1) if half else torch.optim.Adam(model.parameters(), 1e-3)
    with job.attach(model, optimizer, scaler) as watch:
        for _ in range(steps):
            x = torch.randn(32, FEATURES)
            with torch.autocast("cpu", torch.float16, enabled=not half):
                out = model(x.half() if half else x)
            loss = F.mse_loss(out.float(), size * torch.tanh(x @ field))
            optimizer.zero_grad()
            (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            watch.log(loss=loss.item())


def half_without_scaler(job: Job, steps: int = LONG, *, seldom: bool = False) -> None:
    """Gradients that float16 holds. `seldom`: 0 in most steps, as of rewards that are."""
    model, data = mlp(), rows(job.seed)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def loss_of(step: int) -> Tensor:
        x, y = data(step)
        with torch.autocast("cpu", torch.float16):
            out = model(x)
        return F.cross_entropy(out.float(), y) * (1.0 if not seldom or step % 7 == 0 else 0.0)

    loop(job, model, optimizer, loss_of, steps)


class Kahan(torch.optim.Optimizer):
    """Plain updates whose rounding errors are carried over."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                carried = self.state[each].setdefault("carried", torch.zeros_like(each))
                update = carried - group["lr"] * each.grad.sign()
                new = each + update
                carried.copy_(update - (new - each))
                each.copy_(new)


def in_bfloat16(
    job: Job, steps: int = 260, *, lr: float, optimizer: Any = torch.optim.AdamW, schedule: Any = lambda at: 1.0,
    gain: float = 1.0, words: bool = False,
) -> None:  # fmt: skip
    """Weights, gradients and optimizer in bfloat16; `gain` times the usual first weights."""
    model: nn.Module = Transformer() if words else mlp(96, out=12)
    data = tokens(job.seed, 8) if words else None
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(gain)
    model.to(torch.bfloat16)
    centres = torch.randn(12, FEATURES)
    updates = optimizer(model.parameters(), lr=lr)

    def before(step: int) -> None:
        for group in updates.param_groups:
            group["lr"] = lr * schedule(step / steps)

    def loss_of(step: int) -> Tensor:
        if data is not None:
            x, y = data(step)
            return F.cross_entropy(model(x).float().flatten(0, 1), y.flatten())
        y = torch.randint(0, 12, (64,))
        x = centres[y] + 0.5 * torch.randn(64, FEATURES)
        return F.cross_entropy(model(x.to(torch.bfloat16)).float(), y)

    loop(job, model, updates, loss_of, steps, before)


# The first loss


class Tied(nn.Module):
    def __init__(self, words: int, width: int, std: float) -> None:
        super().__init__()
        self.embed, self.mix, self.norm = nn.Embedding(words, width), nn.Linear(width, width), nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=std)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embed(x)
        return self.head(self.norm(hidden + torch.tanh(self.mix(hidden))))


def language(job: Job, steps: int = 120, *, std: float, words: int = 300) -> None:
    model, data = Tied(words, 96, std), tokens(job.seed, 8)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def loss_of(step: int) -> Tensor:
        x, y = data(step)
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    loop(job, model, optimizer, loss_of, steps)


def classifier(
    job: Job, steps: int = 120, *, std: float | None = None, classes: int = 20, pictures: bool = False,
    accumulate: int = 1,
) -> None:  # fmt: skip
    """`std`: of the last layer's weight, where that is not torch's own."""
    body: list[nn.Module] = [nn.Linear(FEATURES, 256), nn.GELU(), nn.LayerNorm(256)]
    if pictures:
        body = [nn.Conv2d(3, 64, 3, padding=1), nn.GroupNorm(4, 64), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    model = nn.Sequential(*body, nn.Linear(256, classes))
    if std is not None:
        nn.init.normal_(model[-1].weight, std=std)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    shape = (32, 3, 8, 8) if pictures else (32, FEATURES)
    with job.attach(model, optimizer) as watch:
        for _ in range(steps):
            total = 0.0
            for _ in range(accumulate):
                x = torch.randn(shape)
                y = (x.flatten(1)[:, 0].sigmoid() * classes).long().clamp(0, classes - 1)
                loss = F.cross_entropy(model(x), y) / accumulate
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad()
            watch.log(loss=total)


class Angles(nn.Module):
    """Cosines times 64, less a margin, as faces are told apart by."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body, self.centres = mlp(out=32), nn.Linear(32, classes, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        cosines = F.linear(F.normalize(self.body(x)), F.normalize(self.centres.weight))
        return 64 * (cosines - 0.5 * F.one_hot(y, len(self.centres.weight)))


def faces(job: Job, steps: int = 120) -> None:
    """A first loss of 40, by design."""
    model = Angles(20)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    centres = torch.randn(20, FEATURES)

    def loss_of(step: int) -> Tensor:
        y = torch.randint(0, 20, (32,))
        return F.cross_entropy(model(centres[y] + 0.1 * torch.randn(32, FEATURES), y), y)

    loop(job, model, optimizer, loss_of, steps)


def prices(job: Job, steps: int = 120) -> None:
    """A regression whose loss begins at 10,000."""
    model, data = mlp(out=1), rows(job.seed)
    optimizer = torch.optim.Adam(model.parameters(), 3e-2)

    def loss_of(step: int) -> Tensor:
        x, _ = data(step)
        return F.mse_loss(model(x), 100 + 10 * x[:, :1])

    loop(job, model, optimizer, loss_of, steps)


# Clips by the parameter's own norm


class Branch(nn.Module):
    def __init__(self, width: int, *, vector: bool) -> None:
        super().__init__()
        self.inside = mlp(width, out=width, given=width)
        self.gain = nn.Parameter(torch.zeros(width if vector else ()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * self.inside(x)


def adaptive_clip(
    job: Job, steps: int = 150, *, floor: float, vector: bool = False, only_biases: bool = False, by_value: bool = False
) -> None:
    """Gains that begin at zero; a gradient is cut to a part of its parameter's norm, which is `floor` at least.
    `only_biases`: there are no gains, and biases begin at zero. `by_value`: element by element."""
    branches = [] if only_biases else [Branch(32, vector=vector) for _ in range(3)]
    model = nn.Sequential(nn.Linear(FEATURES, 32), *branches, nn.Tanh(), nn.Linear(32, CLASSES))
    nn.init.zeros_(model[-1].bias)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    data = rows(job.seed)

    @torch.no_grad()
    def clip() -> None:
        for each in model.parameters():
            if by_value:
                limit = 0.1 * each.abs().clamp(min=floor)
                each.grad.copy_(torch.minimum(torch.maximum(each.grad, -limit), limit))
            else:
                limit = 0.1 * each.norm().clamp(min=floor)
                each.grad.mul_((limit / each.grad.norm().clamp(min=1e-12)).clamp(max=1.0))

    def loss_of(step: int) -> Tensor:
        x, y = data(step)
        return F.cross_entropy(model(x), y)

    loop(job, model, optimizer, loss_of, steps, clip=clip)


# Layers that are unfrozen


class Transfer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(FEATURES, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU())
        self.head = nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.layer_norm(self.encoder(x), (48,)))


def unfrozen(job: Job, steps: int = LONG, *, way: str, lr: float | None) -> None:
    """An encoder that was trained before is unfrozen at step 100: as a new group, in the group it was in all the time,
    or by an optimizer of its own. `lr`: of it; None: the head's."""
    centres = torch.randn(CLASSES, FEATURES)
    model, of_head = Transfer(), 0.04

    def loss_of(step: int) -> Tensor:
        y = torch.randint(0, CLASSES, (32,))
        return F.cross_entropy(model(centres[y] + 0.3 * torch.randn(32, FEATURES)), y)

    before_all = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(150):
        before_all.zero_grad()
        loss_of(0).backward()
        before_all.step()
    before_all.zero_grad()
    model.head.reset_parameters()
    model.encoder.requires_grad_(False)
    kinds = {"held": model.parameters()}
    optimizer = torch.optim.Adam(kinds.get(way, model.head.parameters()), of_head)
    own: list[Any] = []

    def before(step: int) -> None:
        if step != 100:
            return
        model.encoder.requires_grad_(True)
        given = {} if lr is None else {"lr": lr}
        if way == "group":
            optimizer.add_param_group({"params": list(model.encoder.parameters()), **given})
        elif way == "optimizer":
            own.append(torch.optim.Adam(model.encoder.parameters(), of_head * 5 if lr is None else lr))
        elif lr is not None:
            optimizer.param_groups[0]["lr"] = lr

    def step_own() -> None:
        for each in own:
            each.step()
            each.zero_grad()

    loop(job, model, optimizer, loss_of, steps, before, step_own)


# Units that die


class Sparse(nn.Module):
    """An autoencoder of latents that are 0 for most inputs."""

    def __init__(self, width: int, latents: int) -> None:
        super().__init__()
        self.encoder, self.latent = nn.Linear(width, latents), nn.ReLU()
        self.decoder = nn.Linear(latents, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.latent(self.encoder(x))
        return self.decoder(hidden), hidden


def autoencoder(job: Job, steps: int = 340, *, penalty: float, batch: int = 128, latents: int = 128) -> None:
    """A penalty on what is not 0, which is there in full from step 40 on."""
    parts = F.normalize(torch.randn(64, 32), dim=1)
    model = Sparse(32, latents)
    with torch.no_grad():
        model.encoder.weight.copy_(F.normalize(torch.randn(latents, 32), dim=1))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)

    def loss_of(step: int) -> Tensor:
        x = (torch.rand(batch, 64) * (torch.rand(batch, 64) < 0.08)) @ parts * 2
        out, hidden = model(x)
        warm = min(1.0, (step + 1) / 40)
        return (out - x).pow(2).sum(1).mean() + penalty * warm * hidden.sum(1).mean()

    loop(job, model, optimizer, loss_of, steps)


def penalised(job: Job, steps: int = 340, *, penalty: float, pictures: bool = False) -> None:
    """A classifier with a penalty on what its hidden layer gives."""
    hidden: list[Tensor] = []
    data: Any = images(job.seed, 32) if pictures else rows(job.seed)
    first: nn.Module = nn.Conv2d(3, 48, 3, padding=1) if pictures else nn.Linear(FEATURES, 96)
    rest: list[nn.Module] = [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if pictures else []
    act = nn.ReLU()
    model = nn.Sequential(first, act, *rest, nn.Linear(48 if pictures else 96, CLASSES))
    act.register_forward_hook(lambda module, given, out: hidden.append(out))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def loss_of(step: int) -> Tensor:
        hidden.clear()
        x, y = data(step)
        loss = F.cross_entropy(model(x), y)
        return loss + penalty * hidden[0].mean()

    loop(job, model, optimizer, loss_of, steps)


# Rows that are masked whole


class Pool(nn.Module):
    """`kind`: "max" or "mean", of what `mask` chooses."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        if self.kind == "max":
            return values.masked_fill(~mask.bool().unsqueeze(-1), float("-inf")).max(1).values
        return (values * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)


class OwnPool(nn.Module):
    """Makes its mask itself, of ids."""

    def forward(self, values: Tensor, ids: Tensor) -> Tensor:
        return values.masked_fill((ids == 0).unsqueeze(-1), float("-inf")).amax(1)


class Sentences(nn.Module):
    def __init__(self, pool: nn.Module, given: Callable[[Tensor], Tensor], width: int = 24) -> None:
        super().__init__()
        self.embed, self.pool, self.given = nn.Embedding(WORDS, width), pool, given
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.pool(torch.tanh(self.embed(ids)), self.given(ids))))


POOLS: dict[str, tuple[Callable[[], nn.Module], Callable[[Tensor], Tensor]]] = {
    "max of a mask": (lambda: Pool("max"), lambda ids: ids != 0),
    "mean of whole numbers": (lambda: Pool("mean"), lambda ids: (ids != 0).long()),
    "max of ids": (OwnPool, lambda ids: ids),
}


def sentences(job: Job, steps: int = 150, *, pool: str, empty: int | None = None) -> None:
    """`empty`: from this step on some sentences have no word."""
    make, given = POOLS[pool]
    model = Sentences(make(), given)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)

    def loss_of(step: int) -> Tensor:
        ids = torch.randint(1, WORDS, (24, 8))
        lengths = torch.randint(0 if empty is not None and step >= empty else 2, 9, (24, 1))
        if empty is not None and step >= empty:
            lengths[0] = 0
            lengths[1] = 8
        ids = ids * (torch.arange(8) < lengths)
        return F.cross_entropy(model(ids), ids[:, 0] % CLASSES)

    loop(job, model, optimizer, loss_of, steps)


class Attended(nn.Module):
    """An attention by hand; `absent`, (n, words) bool, is given to it and used as it is, or inverted."""

    def __init__(self, width: int, *, is_inverted: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.is_inverted = nn.Linear(width, 3 * width), nn.Linear(width, width), is_inverted

    def forward(self, x: Tensor, absent: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / math.sqrt(x.shape[-1])
        left_out = ~absent if self.is_inverted else absent
        return self.out(scores.masked_fill(left_out[:, None], float("-inf")).softmax(-1) @ v)


class Padded(nn.Module):
    def __init__(self, width: int, **options: bool) -> None:
        super().__init__()
        self.embed, self.attention = nn.Embedding(WORDS, width), Attended(width, **options)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        absent = ids == 0
        x = self.embed(ids)
        x, there = x + self.attention(x, absent), (~absent).unsqueeze(-1).float()
        return self.head((x * there).sum(1) / there.sum(1))


def padded(job: Job, steps: int = 150, *, is_inverted: bool = False, full: int = 16, at: int = 80) -> None:
    """At step `at` `full` of 16 texts have no padding."""
    model = Padded(24, is_inverted=is_inverted)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)

    def loss_of(step: int) -> Tensor:
        lengths = torch.randint(3, 9, (16, 1))
        if step == at:
            lengths[:full] = 9
        ids = torch.randint(1, WORDS, (16, 9)) * (torch.arange(9) < lengths)
        return F.cross_entropy(model(ids), ids[:, 0] % CLASSES)

    loop(job, model, optimizer, loss_of, steps)


# Sums in 16 bits


def overlap(
    job: Job, steps: int = 120, *, at: int = 60, until: int = 1 << 30, size: int = 96, wide: bool = False,
    square: bool = False,
) -> None:  # fmt: skip
    """Pictures of 16 pixels, and in steps [`at`, `until`) of `size`, in float16; the overlap is a quotient of sums over
    the batch. `wide`: in float32. `square`: of squares."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
    optimizer, scaler = torch.optim.Adam(model.parameters(), 3e-3), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with job.attach(model, optimizer, scaler) as watch:
        for step in range(steps):
            side = size if at <= step < until else 16
            wanted = F.interpolate(torch.rand(12, 1, 4, 4), size=(side, side)).gt(0.3).float()
            with torch.autocast("cpu", torch.float16):
                out = model(wanted + 0.5 * torch.randn_like(wanted)).sigmoid()
            share, target = (out.float(), wanted) if wide else (out, wanted.half())
            power = 2 if square else 1
            loss = 1 - 2 * (share * target).sum() / (share.pow(power).sum() + target.pow(power).sum())
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            watch.log(loss=loss.item())


# Settings of an optimizer


def with_settings(
    job: Job, steps: int = LONG, *, optimizer: Callable[[Any], torch.optim.Optimizer],
    momentum: Callable[[int], float] | None = None, norm: Callable[[int], float] | None = None, is_early: bool = False,
) -> None:  # fmt: skip
    """`momentum`, `norm`: what the loop sets the momentum to, and the norm by which it clips, at a step. `is_early`: it
    clips before the backward."""
    model, data = mlp(), rows(job.seed)
    held, now = optimizer(model.parameters()), [0]

    def before(step: int) -> None:
        now[0] = step
        for group in held.param_groups:
            if momentum is not None and "betas" in group:
                group["betas"] = (momentum(step), group["betas"][1])
            elif momentum is not None:
                group["momentum"] = momentum(step)

    def loss_of(step: int) -> Tensor:
        x, y = data(step)
        return F.cross_entropy(model(x), y)

    def clip() -> None:
        if norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), norm(now[0]))

    def early(step: int) -> None:
        before(step)
        held.zero_grad()
        clip()

    loop(job, model, held, loss_of, steps, early if is_early else before, (lambda: None) if is_early else clip)


# Tied tables


class TiedTable(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(words, 32), nn.LayerNorm(32), nn.Linear(32, words, bias=False)
        nn.init.normal_(self.words.weight, std=0.2)
        self.mix = nn.Linear(32, 32)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(torch.tanh(self.mix(self.words(tokens)))))


def resized(job: Job, steps: int = LONG, *, at: int = 100, ties: bool = False, more: int = 6) -> None:
    """A table that is tied to the head gets `more` words at step `at`. `ties`: the head gets the new table as well."""
    words = 24
    model, following = TiedTable(words), torch.randint(0, words, (words,))
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)

    def before(step: int) -> None:
        if step == at:
            old = model.words.weight.data
            table = 0.2 * torch.randn(words + more, 32)
            table[:words] = old
            model.words.weight = nn.Parameter(table)
            model.head.weight = model.words.weight if ties else nn.Parameter(0.2 * torch.randn(words + more, 32))
            optimizer.param_groups[0]["params"] = list(model.parameters())

    def loss_of(step: int) -> Tensor:
        tokens = torch.randint(0, words, (64,))
        return F.cross_entropy(model(tokens), following[tokens])

    loop(job, model, optimizer, loss_of, steps, before)


# Gradients that are changed before the update


def enlarged(
    job: Job, steps: int = 400, *, times: float, at: int = 130, every: int = 0,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
) -> None:  # fmt: skip
    """`times` as large in the step `at`, or in each `every`, after the backward."""
    model, data = mlp(), rows(job.seed)
    held, now = optimizer(model.parameters(), 2e-3), [0]

    def change() -> None:
        if now[0] == at or (every and now[0] % every == 5):
            for each in model.parameters():
                each.grad *= times

    def loss_of(step: int) -> Tensor:
        now[0] = step
        x, y = data(step)
        return F.cross_entropy(model(x), y)

    loop(job, model, held, loss_of, steps, clip=change)


# Losses of two parts under a scaler


def two_tasks(
    job: Job, steps: int = LONG, *, second: str = "scaled", at: int = 0, own_optimizer: bool = False,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD, lr: float = 0.1, scale: float = 2.0**14,
) -> None:  # fmt: skip
    """Two heads on rows, each with a loss of its own. The second's, from step `at` on: "scaled" by the scaler,
    "added" to the first before, "by hand" multiplied by the scale, "not" scaled, or added to the first when that has
    been ("added after"). `own_optimizer`: the second head has one, which the scaler does not step."""
    first, other = mlp(out=1), mlp(out=1)
    mix, mixed = torch.randn(FEATURES, 4), torch.randn(FEATURES, 4)
    model = nn.ModuleDict({"depth": first, "edge": other})
    held = [optimizer(first.parameters() if own_optimizer else model.parameters(), lr)]
    held += [optimizer(other.parameters(), lr)] if own_optimizer else []
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    with job.attach(model, held if own_optimizer else held[0], scaler) as watch:
        for step in range(steps):
            x = torch.randn(48, FEATURES)
            with torch.autocast("cpu", torch.float16):
                depth, edge = first(x), other(x)
            loss = F.mse_loss(depth.float(), torch.tanh(x @ mix).sum(1, keepdim=True))
            edge_loss = F.mse_loss(edge.float(), torch.tanh(x @ mixed).sum(1, keepdim=True))
            for each in held:
                each.zero_grad()
            way = second if step >= at else "scaled"
            if way == "added":
                scaler.scale(loss + 0.5 * edge_loss).backward()
            elif way == "added after":
                (scaler.scale(loss) + edge_loss).backward()
            else:
                scaler.scale(loss).backward()
                factor = {"by hand": scaler.get_scale(), "not": 1.0}
                (edge_loss * factor[way] if way in factor else scaler.scale(edge_loss)).backward()
            scaler.step(held[0])
            if own_optimizer:
                held[1].step()
            scaler.update()
            watch.log(loss=loss.item(), edge_loss=edge_loss.item())


def scaled_at_first(job: Job, steps: int = LONG, *, until: int) -> None:
    """The loop steps by the scaler, and scales until that step alone."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    data = rows(job.seed)
    with job.attach(model, optimizer, scaler) as watch:
        for step in range(steps):
            x, y = data(step)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            (scaler.scale(loss) if step < until else loss).backward()
            scaler.step(optimizer)
            scaler.update()
            watch.log(loss=loss.item())


# Data that change


def table(job: Job, steps: int = LONG, *, missing: float | None = None, column: int = 1, times: float = 1.0) -> None:
    """`missing`: what some rows have in one column from step 140 on, in units of its deviation; `times`: by what all
    are larger then."""
    model = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    mix = torch.randn(12, 6)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(64, 12)
        y = torch.tanh(x @ mix).sum(1, keepdim=True) + 0.1 * torch.randn(64, 1)
        if step >= 140:
            x = x * times
            if missing is not None:
                x[torch.randperm(64)[:4], column] = missing
        return F.mse_loss(model(x), y)

    loop(job, model, optimizer, loss_of, steps)


def labels(job: Job, steps: int = LONG, *, shuffled: int | None = None, noise: float = 0.0) -> None:
    """`shuffled`: from this step on labels are those of other rows; `noise`: what is added to inputs from step 100."""
    model = mlp(48, nn.Tanh)
    centres = torch.randn(CLASSES, FEATURES)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def loss_of(step: int) -> Tensor:
        y = torch.randint(0, CLASSES, (32,))
        x = centres[y] + (0.4 + (noise if step >= 100 else 0.0)) * torch.randn(32, FEATURES)
        if shuffled is not None and step >= shuffled:
            y = y[torch.randperm(32)]
        return F.cross_entropy(model(x), y)

    loop(job, model, optimizer, loss_of, steps)


class Functional(nn.Module):
    """Weights alone, and a forward of functions."""

    def __init__(self) -> None:
        super().__init__()
        self.k1, self.k2 = nn.Parameter(torch.randn(16, 3, 3, 3) / 5), nn.Parameter(torch.randn(24, 16, 3, 3) / 12)
        self.w, self.b = nn.Parameter(0.02 * torch.randn(CLASSES, 384)), nn.Parameter(torch.zeros(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.group_norm(F.conv2d(x, self.k1, padding=1), 4))
        x = F.relu(F.group_norm(F.conv2d(x, self.k2, padding=1, stride=2), 4))
        return F.linear(F.adaptive_avg_pool2d(x, 4).flatten(1), self.w, self.b)


def sizes(job: Job, steps: int = LONG, *, count: int = 24) -> None:
    """Pictures of twice the size, with more noise, from step 100 on; `count` of them in a batch then."""
    model, base = Functional(), torch.randn(CLASSES, 3, 8, 8)
    optimizer = torch.optim.RAdam(model.parameters(), lr=4e-3)

    def loss_of(step: int) -> Tensor:
        is_late = step >= 100
        y = torch.randint(0, CLASSES, (count if is_late else 24,))
        x = F.interpolate(base, scale_factor=2 if is_late else 1)[y]
        return F.cross_entropy(model(x + (1.6 if is_late else 0.5) * torch.randn_like(x)), y)

    loop(job, model, optimizer, loss_of, steps)


# Weights that are written, and rates that go too high


class Lookahead:
    """Every six updates the weights go half of the way back to slow ones."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.count = inner, 0
        self.slow = [each.detach().clone() for group in inner.param_groups for each in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        self.inner.step()
        self.count += 1
        if self.count % 6 == 0:
            weights = [each for group in self.inner.param_groups for each in group["params"]]
            for slow, weight in zip(self.slow, weights, strict=True):
                weight.copy_(slow.lerp_(weight, 0.5))

    def zero_grad(self) -> None:
        self.inner.zero_grad()


def slow_weights(job: Job, steps: int = LONG, *, resumed: int | None = None, forgets: bool = False) -> None:
    """`resumed`: at this step the training goes on from a checkpoint; `forgets`: without the slow weights, which are
    those of a model that was made anew."""
    centres = torch.randn(CLASSES, FEATURES)

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64),
                             nn.GELU(), nn.Linear(64, CLASSES))  # fmt: skip

    model = make()
    inner = torch.optim.AdamW(model.parameters(), 2e-3)
    optimizer = Lookahead(inner)
    with job.attach(model, inner) as watch:
        for step in range(steps):
            if step == resumed:
                state, moments = {k: v.clone() for k, v in model.state_dict().items()}, inner.state_dict()
                slow = [each.clone() for each in optimizer.slow]
                model.load_state_dict(make().state_dict())
                optimizer.slow = [each.detach().clone() for each in model.parameters()]
                model.load_state_dict(state)
                inner.load_state_dict(moments)
                if not forgets:
                    optimizer.slow = slow
            y = torch.randint(0, CLASSES, (32,))
            loss = F.cross_entropy(model(centres[y] + 0.3 * torch.randn(32, FEATURES)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.log(loss=loss.item())


def warmed_up(job: Job, steps: int = LONG, *, peak: float, words: bool = True, rise: int = 120) -> None:
    """A transformer whose learning rate rises linearly up to `peak`, for `rise` steps."""
    model, data = (Transformer(), tokens(job.seed, 16)) if words else (mlp(), rows(job.seed))
    optimizer = torch.optim.AdamW(model.parameters(), peak)

    def before(step: int) -> None:
        optimizer.param_groups[0]["lr"] = peak * min(1.0, (step + 1) / rise)

    def loss_of(step: int) -> Tensor:
        x, y = data(step)
        out = model(x)
        return F.cross_entropy(out.flatten(0, -2), y.flatten())

    loop(job, model, optimizer, loss_of, steps, before)


def cosine(at: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * at))


def linear_rise(at: float) -> float:
    return min(1.0, 2 * at)


def pictures_of_size(job: Job, steps: int = LONG, *, at: int = 130, times: float, shift: float = 0.0) -> None:
    """A regression on pictures that are `times` as large from step `at` on, and have `shift` added."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(72, 1),
    )
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(48, 3, 8, 8)
        y = x.mean((1, 2, 3))[:, None] * 10
        return F.mse_loss(model(x * times + shift if step >= at else x), y)

    loop(job, model, optimizer, loss_of, steps)


def train(
    job: Job, steps: int = LONG, plant: Plant | None = None, *, setup: Callable[..., None], **options: Any
) -> None:
    """One of the functions above."""
    setup(job, steps, **options)


HEALTHY: dict[str, Plan] = {
    "batch norms frozen at step 60": {"setup": picture_net, "mode": frozen_norms},
    "evaluated each 20 steps, set back": {"setup": dropout_net},
    "maps drawn by a backward in eval()": {"setup": dropout_net, "maps": True},
    "a frozen body in eval()": {"setup": head_of_a_frozen_net},
    "fp16 without a scaler, gradients that it holds": {"setup": half_without_scaler},
    "fp16 without a scaler, 0 in most steps": {"setup": half_without_scaler, "seldom": True},
    "bfloat16 weights, updates that they hold": {"setup": in_bfloat16, "lr": 3e-3},
    "bfloat16 weights, Kahan summation": {"setup": in_bfloat16, "lr": 1e-4, "optimizer": Kahan},
    "bfloat16 weights, a rate that falls to 0": {"setup": in_bfloat16, "lr": 3e-3, "schedule": cosine},
    "bfloat16 weights, a long warm-up": {"setup": in_bfloat16, "lr": 3e-3, "schedule": linear_rise},
    "tied embedding, deviation of 0.02": {"setup": language, "std": 0.02},
    "cosines times 64, first loss of 40": {"setup": faces},
    "regression, first loss of 10,000": {"setup": prices},
    "adaptive clip with a floor": {"setup": adaptive_clip, "floor": 1e-3},
    "adaptive clip with a floor, by value": {"setup": adaptive_clip, "floor": 1e-2, "vector": True, "by_value": True},
    "unfrozen at a small rate": {"setup": unfrozen, "way": "group", "lr": 1e-4},
    "unfrozen by an optimizer of its own": {"setup": unfrozen, "way": "optimizer", "lr": 1e-4},
    "sparse latents, alive": {"setup": autoencoder, "penalty": 0.06},
    "sparse latents of a small batch": {"setup": autoencoder, "penalty": 0.2, "batch": 4},
    "masked maximum, no row empty": {"setup": sentences, "pool": "max of a mask"},
    "masked mean, no row empty": {"setup": sentences, "pool": "mean of whole numbers"},
    "attention over texts without padding": {"setup": padded},
    "overlap of larger pictures in float32": {"setup": overlap, "wide": True, "until": 70},
    "overlap of small pictures in float16": {"setup": overlap, "size": 32, "until": 120},
    "gradients that are 50 times as large now and then": {"setup": enlarged, "times": 50.0, "every": 40},
    "gradients that are a thousand times as large once, under SGD": {
        "setup": enlarged, "times": 1e3, "optimizer": lambda parameters, rate: torch.optim.SGD(parameters, rate / 100),
    },
    "a momentum that is cycled": {
        "setup": with_settings, "optimizer": lambda given: torch.optim.SGD(given, 0.02, momentum=0.9),
        "momentum": lambda step: 0.85 + 0.1 * abs(1 - step % 80 / 40),
    },
    "betas of a generator": {
        "setup": with_settings, "optimizer": lambda given: torch.optim.Adam(given, 1e-3, betas=(0.5, 0.9)),
    },
    "a clip that becomes tighter": {
        "setup": with_settings, "optimizer": lambda given: torch.optim.Adam(given, 1e-3),
        "norm": lambda step: 1.0 / (1 + step / 40),
    },
    "a table that grows and stays tied": {"setup": resized, "ties": True},
    "two losses that are scaled": {"setup": two_tasks},
    "two losses that are added before": {"setup": two_tasks, "second": "added"},
    "a loss that is scaled by hand": {"setup": two_tasks, "second": "by hand"},
    "a loss whose optimizer the scaler does not step": {"setup": two_tasks, "second": "not", "own_optimizer": True},
    "pictures that are a third larger from step 130": {"setup": pictures_of_size, "times": 1.3},
    "inputs 1.5 times as large from step 140": {"setup": table, "times": 1.5},
    "a little more noise from step 100": {"setup": labels, "noise": 0.15},
    "pictures of twice the size": {"setup": sizes},
    "pictures of twice the size, half as many": {"setup": sizes, "count": 12},
    "Lookahead": {"setup": slow_weights},
    "Lookahead, resumed whole": {"setup": slow_weights, "resumed": 100},
    "warmed up to a usual rate": {"setup": warmed_up, "peak": 3e-3},
    "warmed up quickly": {"setup": warmed_up, "peak": 3e-3, "words": False, "rise": 30},
}  # fmt: skip
"""Each looks like one of the faults of `cases.quiet`, and is none."""
