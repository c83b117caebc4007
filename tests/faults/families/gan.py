"""A GAN with convolutions and BatchNorm: two optimizers, turn about, in one module as Lightning has it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.faults.fault import Job, Plant
from tests.faults.models import images

NZ = 8


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(NZ, 16 * 4)
        self.main = nn.Sequential(
            nn.ConvTranspose2d(16, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(True),
            nn.ConvTranspose2d(16, 3, 4, 2, 1),
        )  # fmt: skip

    def forward(self, z: Tensor) -> Tensor:
        return torch.tanh(self.main(F.relu(self.project(z)).view(-1, 16, 2, 2))) * 2


class Discriminator(nn.Module):
    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 4, 2, 1), nn.Conv2d(16, 16, 4, 2, 1, bias=not norm)
        self.bn2 = nn.BatchNorm2d(16) if norm else nn.Identity()
        self.head = nn.Linear(16 * 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.conv1(x), 0.2)
        return self.head(F.leaky_relu(self.bn2(self.conv2(x)), 0.2).flatten(1)).squeeze(1)


class GAN(nn.Module):
    def __init__(self, penalty: bool) -> None:
        super().__init__()
        self.generator, self.discriminator = Generator(), Discriminator(norm=not penalty)

    def forward(self, z: Tensor) -> Tensor:
        return self.generator(z)

    def configure_optimizers(self, lr: float) -> list[torch.optim.Optimizer]:
        g = torch.optim.Adam(self.generator.parameters(), lr=lr, betas=(0.5, 0.999))
        return [g, torch.optim.Adam(self.discriminator.parameters(), lr=lr, betas=(0.5, 0.999))]


def gradient_penalty(gan: GAN, real: Tensor, fake: Tensor, plant: Plant) -> Tensor:
    eps = torch.rand(len(real), 1, 1, 1)
    mixed = (eps * real + (1 - eps) * fake).requires_grad_()
    (grad,) = torch.autograd.grad(gan.discriminator(mixed).sum(), mixed, create_graph=True)
    grad = plant.inside("penalty", grad.flatten(1))
    return ((grad.norm(2, dim=1) - 1) ** 2).mean()


def train(
    job: Job, steps: int = 400, plant: Plant | None = None, *, lr: float = 1e-3, penalty: bool = False,
    smooth: float = 1.0, evaluated: bool = False, clip: float = 0.0, optimizers: Any = None, **options: Any,
) -> None:  # fmt: skip
    """`optimizers(gan, lr)` takes the place of its own."""
    plant = plant or Plant()
    gan = GAN(penalty)
    opt_g, opt_d = optimizers(gan, lr) if optimizers is not None else gan.configure_optimizers(lr)
    data, held_out = images(job.seed, 16), images(job.seed + 900, 16)
    bce = F.binary_cross_entropy_with_logits
    with job.attach(gan, [opt_g, opt_d], **options) as watch:
        for step in plant.steps(steps):
            plant.weights(gan)
            for opt in (opt_g, opt_d):
                opt.param_groups[0]["lr"] = plant.rate(lr)
            imgs, _ = plant.batch(data(step))
            z = torch.randn(len(imgs), NZ)
            # discriminator
            fake = gan(z).detach()
            real_out, fake_out = gan.discriminator(imgs), gan.discriminator(fake)
            if penalty:
                d_loss = fake_out.mean() - real_out.mean() + 10 * gradient_penalty(gan, imgs, fake, plant)
            else:
                d_loss = bce(real_out, torch.full_like(real_out, smooth)) + bce(fake_out, torch.zeros_like(fake_out))
            opt_d.zero_grad()
            plant.loss(d_loss).backward()
            plant.gradients(gan.discriminator)
            if clip:
                nn.utils.clip_grad_norm_(gan.discriminator.parameters(), clip)
            opt_d.step()
            # generator
            fake_out = gan.discriminator(gan(z))
            g_loss = -fake_out.mean() if penalty else bce(fake_out, torch.ones_like(fake_out))
            opt_g.zero_grad()
            g_loss.backward()
            opt_g.step()
            watch.log(loss=d_loss.item() / 2, g_loss=g_loss.item())
            if evaluated and step % 50 == 49:
                gan.eval()
                with torch.no_grad():
                    watch.log(fooled=gan.discriminator(gan(z)).sigmoid().mean().item())
                    gan.discriminator(plant.held_out(held_out(step))[0])
                gan.train()


HEALTHY: dict[str, dict[str, Any]] = {
    "BatchNorm, evaluated": {"evaluated": True},
    "one-sided labels, clipped": {"smooth": 0.9, "clip": 0.5},
    "gradient penalty": {"penalty": True, "lr": 3e-4},
}
