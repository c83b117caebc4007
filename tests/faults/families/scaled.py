"""Trainings in float16 whose scaler is handled in other ways than the manual's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.faults.families.setups import LONG, mlp
from tests.faults.fault import Job
from tests.faults.models import rows

HALF = torch.float16


def scaler(scale: float, interval: int = 40) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)


def classes(
    job: Job, steps: int = LONG, *, scale: float = 2.0**14, is_passed: bool = False, is_anew: bool = False,
    divided: int | None = None, optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW, lr: float = 2e-3,
    interval: int = 40, **options: Any,
) -> None:  # fmt: skip
    """`is_passed`: attach is given the scaler. `is_anew`: each step makes one. `divided`: from this step on gradients
    are divided by the scale by hand as well."""
    model, data = mlp(), rows(job.seed)
    made, held = optimizer(model.parameters(), lr, **options), scaler(scale, interval)
    with job.attach(model, made, held if is_passed else None) as watch:
        for step in range(steps):
            held = scaler(scale) if is_anew else held
            x, y = data(step)
            with torch.autocast("cpu", HALF):
                loss = F.cross_entropy(model(x).float(), y)
            made.zero_grad()
            held.scale(loss).backward()
            if divided is not None and step >= divided:
                for each in model.parameters():
                    each.grad.div_(held.get_scale())  # type: ignore[union-attr]
            held.step(made)
            held.update()
            watch.log(loss=loss.item())


def penalised(job: Job, steps: int = LONG, *, is_unscaled: bool) -> None:
    """A critic of two heaps of points with a penalty of its slope, which is divided by the scale again or not."""
    critic = nn.Sequential(nn.Linear(2, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
    made, held = torch.optim.Adam(critic.parameters(), 1e-3, betas=(0.0, 0.9)), scaler(2.0**16)
    with job.attach(critic, made, held) as watch:
        for _ in range(steps):
            real, fake = torch.randn(64, 2) * 0.3 + 1, torch.randn(64, 2) * 0.3
            with torch.autocast("cpu", HALF):
                loss = critic(fake).float().mean() - critic(real).float().mean()
            mixed = (real + torch.rand(64, 1) * (fake - real)).requires_grad_()
            with torch.autocast("cpu", HALF):
                score: Tensor = critic(mixed)
            (slope,) = torch.autograd.grad(held.scale(score.float().sum()), mixed, create_graph=True)
            slope = slope / held.get_scale() if is_unscaled else slope
            loss = loss + 10 * ((slope.norm(dim=1) - 1) ** 2).mean()
            made.zero_grad()
            held.scale(loss).backward()
            held.step(made)
            held.update()
            watch.log(loss=loss.item())


def two_optimizers(job: Job, steps: int = LONG) -> None:
    """One scaler for both, which attach is not given."""
    body, head, data = mlp(out=32), nn.Linear(32, 6), rows(job.seed)
    made, held = [torch.optim.AdamW(each.parameters(), 2e-3) for each in (body, head)], scaler(2.0**22)
    with job.attach(nn.ModuleDict({"body": body, "head": head}), made) as watch:
        for step in range(steps):
            x, y = data(step)
            with torch.autocast("cpu", HALF):
                loss = F.cross_entropy(head(body(x)).float(), y)
            held.scale(loss).backward()
            for each in made:
                held.step(each)
                each.zero_grad()
            held.update()
            watch.log(loss=loss.item())


def train(job: Job, steps: int = LONG, *, setup: Callable[..., None], **arguments: Any) -> None:
    setup(job, steps, **arguments)


SGD = {"optimizer": torch.optim.SGD, "lr": 0.02, "momentum": 0.9}

HEALTHY: dict[str, dict[str, Any]] = {
    "a scaler that attach is not given": {"setup": classes, "scale": 2.0**22},
    "one that is not given, with SGD": {"setup": classes, **SGD, "scale": 2.0**22},
    "one that is not given and grows often": {"setup": classes, "interval": 12},
    "one that is not given, and two optimizers": {"setup": two_optimizers},
    "a penalty of slopes that are unscaled": {"setup": penalised, "is_unscaled": True},
}
