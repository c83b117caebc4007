"""A diffusion model of small pictures: cosine schedule, time embedding, an EMA, fp16 with a scaler if asked."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.faults.fault import Job, Plant
from tests.faults.models import images

T = 50


class ResBlock(nn.Module):
    def __init__(self, ch: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, ch), nn.Conv2d(ch, ch, 3, padding=1)
        self.time = nn.Linear(32, ch)
        self.norm2, self.conv2 = nn.GroupNorm(4, ch), nn.Conv2d(ch, ch, 3, padding=1)

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(emb)[:, :, None, None]
        return x + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    def __init__(self, plant: Plant, ch: int = 16) -> None:
        super().__init__()
        self.time_mlp = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.conv_in, self.conv_out = nn.Conv2d(3, ch, 3, padding=1), nn.Conv2d(ch, 3, 3, padding=1)
        self.down, self.middle, self.up = ResBlock(ch), ResBlock(ch), ResBlock(ch)
        self.plant = plant

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        freqs = torch.exp(-math.log(100.0) * torch.arange(8) / 8)
        args = t[:, None].float() * freqs
        emb = self.time_mlp(torch.cat([args.sin(), args.cos()], dim=-1))
        h = self.down(self.conv_in(x), emb)
        mid = self.plant.inside("middle", self.middle(F.avg_pool2d(h, 2), emb))
        return self.conv_out(self.up(h + F.interpolate(mid, scale_factor=2.0), emb))


def alpha_bar(plant: Plant) -> Tensor:
    t = torch.linspace(0, 1, T + 1)[:-1]
    return torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2


@torch.no_grad()
def update_ema(ema: nn.Module, model: nn.Module, decay: float = 0.99) -> None:
    for a, b in zip(ema.parameters(), model.parameters(), strict=True):
        a.lerp_(b, 1 - decay)


def train(
    job: Job, steps: int = 400, plant: Plant | None = None, *, lr: float = 1e-3, dtype: torch.dtype | None = None,
    scaler: Any = None, clip: float = 0.0, sample_every: int = 0, weighting: Any = None, loss_fn: Any = F.mse_loss,
    stale: bool = False, ch: int = 16, **options: Any,
) -> None:  # fmt: skip
    """`weighting(alpha_bar at t)`: of each picture's loss. `stale`: a block is replaced after the optimizer."""
    plant = plant or Plant()
    model = UNet(plant, ch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    if stale:
        model.up = copy.deepcopy(model.up)
    ema = copy.deepcopy(model).requires_grad_(False)
    scaler = scaler() if scaler else torch.amp.GradScaler("cpu", enabled=False)
    bars, data = alpha_bar(plant), images(job.seed, 8)
    held_out = images(job.seed + 400, 8)
    with job.attach(model, optimizer, scaler if scaler.is_enabled() else None, **options) as watch:
        for step in plant.steps(steps):
            plant.weights(model)
            for group in optimizer.param_groups:
                group["lr"] = plant.rate(lr)
            x0, _ = plant.batch(data(step))
            t, noise = torch.randint(0, T, (len(x0),)), torch.randn_like(x0)
            bar = bars[t][:, None, None, None]
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                pred = model(bar.sqrt() * x0 + (1 - bar).sqrt() * noise, t)
            if weighting is None:
                loss = loss_fn(pred.float(), noise)
            else:
                loss = (weighting(step, bars[t]) * (pred.float() - noise).pow(2).mean((1, 2, 3))).mean()
            loss = plant.loss(loss)
            scaler.scale(loss).backward()
            plant.gradients(model)
            if clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            update_ema(ema, model)
            watch.log(loss=loss.item(), scale=scaler.get_scale())
            if sample_every and step % sample_every == sample_every - 1:
                with torch.no_grad():
                    x0, _ = plant.held_out(held_out(step))
                    model(x0, torch.full((len(x0),), T // 2))
                    ema(torch.randn_like(x0), torch.full((len(x0),), T - 1))


def growing_scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=20)


HEALTHY: dict[str, dict[str, Any]] = {
    "EMA, sampled": {"sample_every": 50},
    "fp16 whose scale grows into skips": {"dtype": torch.float16, "scaler": growing_scaler, "clip": 1.0, "ch": 4},
    "weighted by the signal": {"weighting": lambda step, bar: (bar / (1 - bar)).clamp(max=5.0)},
}
