"""Trainings of small models whose learning rate or weight decay is what is to be judged: schedules that restart, that
step once an epoch, that end too soon, and decay that is far too strong. As they are they have nothing wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.faults.families.setups import LONG, mlp
from tests.faults.fault import Job, Plant
from tests.faults.models import CLASSES, FEATURES, Transformer, rows, tokens

Plan = dict[str, Any]
Schedule = Callable[[int], float]


def scheduled(
    job: Job, model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Schedule, loss_of: Callable[[int], Tensor],
    steps: int, *, every: int = 1, moves: int = 1,
) -> None:  # fmt: skip
    """`schedule(n)`: part of the optimizer's rate after n moves of the scheduler, which is moved `moves` times after
    each `every` steps."""
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    with job.attach(model, optimizer) as watch:
        for step in range(steps):
            loss = loss_of(step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not (step + 1) % every:
                for _ in range(moves):
                    scheduler.step()
            watch.log(loss=loss.item())


def easy(noise: float = 0.15, count: int = 16) -> tuple[nn.Module, Callable[[int], Tensor]]:
    """A classifier of clouds that lie far apart, of which it soon makes next to no mistake."""
    model, centres = mlp(), 1.5 * torch.randn(CLASSES, FEATURES)

    def loss_of(step: int) -> Tensor:
        y = torch.randint(0, CLASSES, (count,))
        x = centres[y] + noise * torch.randn(count, FEATURES)
        x[0] = centres[y[0]].lerp(centres[(y[0] + 1) % CLASSES], 0.49 * float(torch.rand(()) < 0.05))
        return F.cross_entropy(model(x), y)

    return model, loss_of


def words(seed: int) -> tuple[nn.Module, Callable[[int], Tensor]]:
    model, data = Transformer(), tokens(seed, 16)

    def loss_of(step: int) -> Tensor:
        x, y = data(step)
        return F.cross_entropy(model(x).flatten(0, -2), y.flatten())

    return model, loss_of


def noisy(seed: int) -> tuple[nn.Module, Callable[[int], Tensor]]:
    model, data = mlp(), rows(seed)

    def loss_of(step: int) -> Tensor:
        x, y = data(step)
        return F.cross_entropy(model(x), y)

    return model, loss_of


def cosine_of(cycle: int, times: float = 1.0) -> Schedule:
    """Cosines from the peak to 0, `cycle` moves each; the second one and those after it from `times` as high."""
    return lambda n: (times if n >= cycle else 1.0) * 0.5 * (1 + math.cos(math.pi * (n % cycle) / cycle))


def restarted(
    job: Job, steps: int = LONG, *, cycle: int = 66, peak: float = 3e-3, times: float = 1.0, kind: str = "easy",
    optimizer: Any = torch.optim.AdamW,
) -> None:  # fmt: skip
    model, loss_of = easy() if kind == "easy" else words(job.seed)
    scheduled(job, model, optimizer(model.parameters(), lr=peak), cosine_of(cycle, times), loss_of, steps)


def raised(job: Job, steps: int = LONG, *, low: float, high: float, at: int = 100) -> None:
    """The rate is raised at once, after a start at a low one."""
    model, loss_of = words(job.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=high)
    scheduled(job, model, optimizer, lambda n: 1.0 if n >= at else low / high, loss_of, steps)


def warmed(
    job: Job, steps: int = 240, *, peak: float = 1e-3, moves: int = 400, every: int = 1, kind: str = "noisy",
    optimizer: Any = torch.optim.AdamW,
) -> None:  # fmt: skip
    """A warm-up over `moves` moves of the scheduler, one each `every` steps."""
    model, loss_of = noisy(job.seed) if kind == "noisy" else words(job.seed)
    made = optimizer(model.parameters(), lr=peak)
    scheduled(job, model, made, lambda n: min(1.0, (n + 1) / moves), loss_of, steps, every=every)


def begins_high(job: Job, steps: int = LONG, *, times: float = 80.0, length: int = 50) -> None:
    """A warm-up by `length` / step in place of step / `length`."""
    torch.manual_seed(job.seed)
    data, model = tokens(job.seed), Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of(step: int) -> Tensor:
        x, y = data(step)
        return F.cross_entropy(model(x).flatten(0, -2), y.flatten())

    scheduled(job, model, optimizer, lambda step: max(1.0, times / (step + 1)), loss_of, steps)


def constant(
    job: Job, steps: int = 240, *, lr: float, optimizer: Any = torch.optim.AdamW, kind: str = "noisy",
    trained: int = 0, frozen: bool = False, bfloat16: bool = False,
) -> None:  # fmt: skip
    """`trained`: steps at a usual rate before, so that it is fine-tuned. `frozen`: all but the last layer."""
    model, loss_of = noisy(job.seed) if kind == "noisy" else words(job.seed)
    before = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(trained):
        before.zero_grad()
        loss_of(10_000 + step).backward()
        before.step()
    before.zero_grad()
    if frozen:
        model.requires_grad_(False)
        model[-1].requires_grad_(True)
    wanted = [each for each in model.parameters() if each.requires_grad]
    scheduled(job, model, optimizer(wanted, lr=lr), lambda n: 1.0, loss_of, steps)


def ends(
    job: Job, steps: int = 260, *, length: int | None = None, moves: int = 1, kind: str = "linear", text: bool = False
) -> None:
    """The rate falls to 0 within `length` moves of the scheduler, or with the last step."""
    model, loss_of = words(job.seed) if text else noisy(job.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def schedule(n: int) -> float:
        left = max(0.0, 1 - n / (length or steps))
        return left if kind == "linear" else (0.5 * (1 + math.cos(math.pi * (1 - left))) if left else 0.0)

    scheduled(job, model, optimizer, schedule, loss_of, steps, moves=moves)


class Decaying(torch.optim.Optimizer):
    """Adam with a decay of its own; `by_rate`: multiplied by the learning rate, as it should be."""

    def __init__(self, parameters: Any, lr: float, weight_decay: float, by_rate: bool) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "by_rate": by_rate})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            share = group["weight_decay"] * (group["lr"] if group["by_rate"] else 1.0)
            for each in group["params"]:
                state = self.state[each] or {"n": 0, "m": torch.zeros_like(each), "v": torch.zeros_like(each)}
                self.state[each] = state
                state["n"] += 1
                each.mul_(1 - share)
                m, v = state["m"].lerp_(each.grad, 0.1), state["v"].lerp_(each.grad.square(), 0.01)
                corrected = (v / (1 - 0.99 ** state["n"])).sqrt() + 1e-8
                each.addcdiv_(m, corrected, value=-group["lr"] / (1 - 0.9 ** state["n"]))


def decayed(
    job: Job, steps: int = LONG, *, make: Callable[[Any], torch.optim.Optimizer], kind: str = "noisy", rise: int = 20
) -> None:
    """`make(parameters)` gives the optimizer; its rate is warmed up for `rise` steps."""
    model, loss_of = noisy(job.seed) if kind == "noisy" else words(job.seed)
    scheduled(job, model, make(model.parameters()), lambda n: min(1.0, (n + 1) / rise), loss_of, steps)


def own_decay(weight_decay: float, *, by_rate: bool, lr: float = 2e-3) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: Decaying(parameters, lr, weight_decay, by_rate)


def torch_decay(name: str, **settings: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: getattr(torch.optim, name)(parameters, **settings)


def train(
    job: Job, steps: int = LONG, plant: Plant | None = None, *, setup: Callable[..., None], **options: Any
) -> None:
    """One of the functions above."""
    setup(job, steps, **options)


HEALTHY: dict[str, Plan] = {
    "cosine with restarts, soon without mistakes": {"setup": restarted},
    "cosine with restarts, words": {"setup": restarted, "kind": "words"},
    "short cosines, SGD": {"setup": restarted, "cycle": 50, "peak": 0.1, "optimizer": torch.optim.SGD},
    "rate raised 30 times as planned": {"setup": raised, "low": 1e-4, "high": 3e-3},
    "warm-up of 2,000 steps": {"setup": warmed, "moves": 2_000},
    "warm-up of 8 epochs": {"setup": warmed, "moves": 8, "every": 25},
    "fine-tuned at 1e-5": {"setup": constant, "lr": 1e-5, "trained": 300},
    "fine-tuned at 1e-5, words": {"setup": constant, "lr": 1e-5, "trained": 150, "kind": "words"},
    "head alone at 1e-4": {"setup": constant, "lr": 1e-4, "trained": 100, "frozen": True},
    "falls to 0 with the last step": {"setup": ends},
    "cosine to 0, words": {"setup": ends, "kind": "cosine", "text": True},
    "AdamW, decay of 0.1": {"setup": decayed, "make": torch_decay("AdamW", lr=3e-3, weight_decay=0.1)},
    "AdamW, decay of 1 at 1e-3, words": {
        "setup": decayed, "make": torch_decay("AdamW", lr=1e-3, weight_decay=1.0), "kind": "words",
    },
    "SGD, decay of 5e-4 at 0.1": {
        "setup": decayed, "make": torch_decay("SGD", lr=0.1, momentum=0.9, weight_decay=5e-4),
    },
    "own decay, multiplied by the rate": {"setup": decayed, "make": own_decay(0.1, by_rate=True)},
}  # fmt: skip
"""Each looks like one of the faults of `cases.schedules`, and is none."""
