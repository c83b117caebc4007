"""Trainings in which parts are exchanged, frozen or left aside on the way: parameters that are made anew, teachers,
averages of weights, experts. As they are they have nothing wrong.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.faults.families.setups import LONG, loop, mlp
from tests.faults.fault import Job, Plant
from tests.faults.models import CLASSES, FEATURES, WORDS, rows, tokens

Plan = dict[str, Any]


# Parameters that are made anew


class Bag(nn.Module):
    """The mean of words' vectors, and a head."""

    def __init__(self, words: int, width: int = 24) -> None:
        super().__init__()
        self.table, self.body = nn.Embedding(words, width), mlp(32, out=32, given=width)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.table(ids).mean(1))))


def grown_table(model: Bag, count: int) -> None:
    """New rows; the parameter is another object from here on."""
    old = model.table.weight
    model.table.weight = nn.Parameter(torch.cat([old.detach(), 0.5 * torch.randn(count, old.shape[1])]))
    model.table.num_embeddings += count


def grown_head(model: Bag, count: int) -> None:
    """New classes, with a new layer."""
    old, model.head = model.head, nn.Linear(32, CLASSES + count)
    with torch.no_grad():
        model.head.weight[:CLASSES].copy_(old.weight)
        model.head.bias[:CLASSES].copy_(old.bias)


def moved_to_a_copy(model: Bag, count: int) -> None:
    """What some conversions do: each parameter of the body is another object, with the same values."""
    for each in model.body.modules():
        for name, parameter in list(each._parameters.items()):
            if parameter is not None:
                setattr(each, name, nn.Parameter(parameter.detach().clone()))


def renewed(
    job: Job, steps: int = LONG, *, how: Callable[[Bag, int], None], at: int = 90, tells: str = "", count: int = 30,
) -> None:  # fmt: skip
    """`tells`: whether the optimizer learns of it: as a new "group", or a new "optimizer" is made."""
    model = Bag(60)
    made: list[Any] = [torch.optim.AdamW(model.parameters(), 3e-3)]
    data = torch.Generator().manual_seed(job.seed)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        most = model.table.num_embeddings
        y = torch.randint(0, CLASSES, (32,), generator=data)
        ids = torch.randint(0, most // CLASSES, (32, 6), generator=data) * CLASSES + y[:, None]
        return ids.clamp(max=most - 1), y

    with job.attach(model, made[0]) as watch:
        for step in range(steps):
            if step == at:
                how(model, count)
                if tells == "group":
                    held = {id(each) for group in made[0].param_groups for each in group["params"]}
                    made[0].add_param_group({"params": [p for p in model.parameters() if id(p) not in held]})
                elif tells:
                    made[0] = torch.optim.AdamW(model.parameters(), 3e-3)
            x, y = batch(step)
            loss = F.cross_entropy(model(x), y)
            made[0].zero_grad()
            loss.backward()
            made[0].step()
            watch.log(loss=loss.item())


# Teachers


class Distilled(nn.Module):
    """A frozen teacher and a student. `guards`: the teacher is put into eval() in each forward."""

    def __init__(self, teacher: nn.Module, guards: bool) -> None:
        super().__init__()
        self.teacher, self.student, self.guards = teacher.requires_grad_(False), mlp(32), guards

    def forward(self, x: Tensor) -> Tensor:
        if self.guards:
            self.teacher.eval()
        is_trained = torch.is_grad_enabled() and next(self.teacher.parameters()).requires_grad
        with torch.set_grad_enabled(is_trained):
            wanted = (self.teacher(x) / 2).softmax(-1)
        return 4 * F.kl_div((self.student(x) / 2).log_softmax(-1), wanted, reduction="batchmean")


def teacher_of(kind: str) -> nn.Sequential:
    if kind == "dropout":
        return nn.Sequential(nn.Linear(FEATURES, 64), nn.GELU(), nn.Dropout(0.4), nn.Linear(64, CLASSES))
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, CLASSES))


def taught(
    job: Job, steps: int = LONG, *, kind: str = "dropout", at: int | None = None, guards: bool = False,
    from_start: bool = False, thaws: bool = False,
) -> None:  # fmt: skip
    """Evaluated each 40 steps. From `at` on the whole is set back into train(), the teacher with it. `from_start`: the
    teacher is in train() all the time. `thaws`: it is trained from step 80 on."""
    teacher, data = teacher_of(kind), rows(job.seed)
    first = torch.optim.Adam(teacher.parameters(), 3e-3)
    for step in range(120):
        x, y = data(5_000 + step)
        first.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        first.step()
    first.zero_grad()
    whole = Distilled(teacher, guards)
    if not from_start:
        whole.teacher.eval()
    optimizer = torch.optim.Adam(whole.parameters() if thaws else whole.student.parameters(), 3e-3)

    def before(step: int) -> None:
        if thaws and step == 80:
            whole.teacher.requires_grad_(True)
            whole.train()
        if not step or step % 40:
            return
        is_training = whole.teacher.training
        whole.eval()
        with torch.no_grad():
            whole(data(9_000)[0])
        whole.train()
        if at is None or step < at:
            whole.teacher.train(is_training)
        if guards:
            whole.teacher.train()

    loop(job, whole, optimizer, lambda step: whole(data(step)[0]), steps, before)


class Tuned(nn.Module):
    """A frozen body with batch norms, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 48),
                                  nn.BatchNorm1d(48), nn.ReLU())  # fmt: skip
        self.head = nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def tuned(job: Job, steps: int = LONG, *, at: int | None = None) -> None:
    """The body is frozen, in eval(). `at`: the epoch's start at which `model.train()` takes it along."""
    model, data = Tuned(), rows(job.seed)
    with torch.no_grad():
        for step in range(50):
            model(data(3_000 + step)[0])
    model.body.requires_grad_(False)
    optimizer = torch.optim.SGD(model.head.parameters(), 0.05, momentum=0.9)

    def before(step: int) -> None:
        if step % 30 == 0:
            model.train()
            if at is None or step < at:
                model.body.eval()

    def loss_of(step: int) -> Tensor:
        x, y = data(step)
        return F.cross_entropy(model(x), y)

    loop(job, model, optimizer, loss_of, steps, before)


# Averages of weights


class Average:
    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay, self.mean = model, decay, copy.deepcopy(model.state_dict())

    @torch.no_grad()
    def update(self) -> None:
        for name, value in self.model.state_dict().items():
            self.mean[name].lerp_(value, 1 - self.decay)

    @contextmanager
    def applied(self, *, is_restored: bool) -> Iterator[None]:
        """Within it the model has the average's weights; afterwards its own again, where `is_restored`."""
        own = copy.deepcopy(self.model.state_dict())
        self.model.load_state_dict(self.mean)
        yield
        if is_restored:
            self.model.load_state_dict(own)


def averaged(
    job: Job, steps: int = LONG, *, is_restored: bool = True, every: int = 60, decay: float = 0.995,
    words: bool = False, lr: float = 3e-3,
) -> None:  # fmt: skip
    """Evaluated with the average's weights each `every` steps."""
    model: nn.Module = Sequence() if words else mlp()
    data: Any = tokens(job.seed, 16) if words else rows(job.seed)
    average, made = Average(model, decay), torch.optim.AdamW(model.parameters(), lr)

    def loss_of(step: int) -> Tensor:
        x, y = data(step)
        return F.cross_entropy(model(x).flatten(0, -2), y.flatten())

    def before(step: int) -> None:
        if step:
            average.update()
        if step and not step % every:
            with average.applied(is_restored=is_restored):
                model.eval()
                with torch.no_grad():
                    loss_of(50_000)
                model.train()

    loop(job, model, made, loss_of, steps, before)


class Sequence(nn.Module):
    """A recurrent model of words."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(WORDS, width), nn.GRU(width, width, batch_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.cell(self.embed(ids))[0]))


# Experts by hand


class Routed(nn.Module):
    """One expert for each row. `bias`: added to the scores, which keeps rows away from some."""

    def __init__(self, width: int, experts: int, bias: Tensor, *, each: str) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        make = {"linear": lambda: nn.Linear(width, width), "mlp": lambda: mlp(48, out=width, given=width)}[each]
        self.experts = nn.ModuleList(make() for _ in range(experts))
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        chances = (self.gate(x) + self.bias.to(x.dtype)).softmax(-1)
        weight, chosen = chances.max(-1)
        out = torch.zeros_like(x)
        for n, expert in enumerate(self.experts):
            at = (chosen == n).nonzero().flatten()
            if len(at):
                out = out.index_add(0, at, expert(x[at]) * weight[at, None])
        return x + out


class Branches(nn.Module):
    """Layers of which `used` alone are called: no experts."""

    def __init__(self, count: int, used: int) -> None:
        super().__init__()
        self.given, self.used = nn.Linear(FEATURES, 24), used
        self.layers, self.head = nn.ModuleList(nn.Linear(24, 24) for _ in range(count)), nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.given(x)
        for each in list(self.layers)[: self.used]:
            x = torch.tanh(each(x))
        return self.head(x)


def routed(
    job: Job, steps: int = LONG, *, lost: int = 0, at: int = 0, experts: int = 6, each: str = "mlp",
    half: bool = False, seldom: bool = False,
) -> None:  # fmt: skip
    """`lost`: so many experts get no row from step `at` on. `seldom`: one gets rows in one step of ten."""
    bias = torch.zeros(experts)
    model = nn.Sequential(nn.Linear(FEATURES, 24), Routed(24, experts, bias, each=each), nn.Linear(24, CLASSES))
    if half:
        model.to(torch.bfloat16)
    data, optimizer = rows(job.seed), torch.optim.Adam(model.parameters(), 1e-3)
    centres = 4 * torch.randn(experts, FEATURES)
    with torch.no_grad():
        model[1].gate.weight.copy_(F.normalize(centres @ model[0].weight.float().T, dim=1))

    def before(step: int) -> None:
        bias.zero_()
        if step >= at:
            bias[:lost] = -50.0
        if seldom:
            bias[0] = 0.0 if not step % 10 else -50.0

    def loss_of(step: int) -> Tensor:
        x, y = data(step)
        x = x + centres[torch.arange(len(x)) % experts]
        return F.cross_entropy(model(x.to(torch.bfloat16) if half else x).float(), y)

    loop(job, model, optimizer, loss_of, steps, before)


def branches(job: Job, steps: int = LONG, *, used: int = 4) -> None:
    model, data = Branches(6, used), rows(job.seed)

    def loss_of(step: int) -> Tensor:
        x, y = data(step)
        return F.cross_entropy(model(x), y)

    loop(job, model, torch.optim.Adam(model.parameters(), 1e-3), loss_of, steps)


def train(
    job: Job, steps: int = LONG, plant: Plant | None = None, *, setup: Callable[..., None], **options: Any
) -> None:
    """One of the functions above."""
    setup(job, steps, **options)


HEALTHY: dict[str, Plan] = {
    "table grown, in a new group": {"setup": renewed, "how": grown_table, "tells": "group"},
    "head grown, in a new optimizer": {"setup": renewed, "how": grown_head, "tells": "optimizer", "count": 4},
    "a copy of the body, in a new optimizer": {"setup": renewed, "how": moved_to_a_copy, "tells": "optimizer"},
    "teacher in eval, evaluated": {"setup": taught},
    "teacher set to eval in each forward": {"setup": taught, "kind": "norm", "guards": True},
    "teacher in train all the time": {"setup": taught, "from_start": True},
    "teacher that is trained from step 80": {"setup": taught, "kind": "norm", "thaws": True},
    "frozen body in eval": {"setup": tuned},
    "average restored": {"setup": averaged},
    "average restored, words": {"setup": averaged, "words": True, "every": 40},
    "six experts by hand": {"setup": routed},
    "an expert that is seldom chosen": {"setup": routed, "seldom": True},
    "layers that are not used": {"setup": branches},
}  # fmt: skip
"""Each looks like one of the faults of `cases.exchanges`, and is none."""
