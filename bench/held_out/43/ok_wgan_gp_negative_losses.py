"""WGAN-GP on a ring of points in the plane (thread: 'my WGAN losses are negative and the generator's goes up, does it work?').
HEALTHY: the critic's loss is negative, the generator's wanders and even rises; the critic is trained 5 times for each step of the generator. Judged by the samples' distance from the ring it learns.
Without Rangewatch: Loss_D +0.38 at first, -1.2 at iteration 20, -0.19 at 159; Loss_G +0.1 up to 3.4 and back to 1.7; distance from the ring 1.29 to 0.23, spread 0.09 to 0.96 (the ring's is 1.06)."""
EXPECT = {"healthy": True}
import math
import torch
import torch.nn as nn
import torch.autograd as autograd
import rangewatch

torch.manual_seed(101); torch.set_num_threads(1)
LAMBDA, CRITIC_ITERS, BATCH, Z = 1.0, 5, 64, 2


def real_points():
    a = torch.rand(BATCH, 1) * 2 * math.pi
    return torch.cat([a.cos(), a.sin()], 1) * 1.5 + 0.03 * torch.randn(BATCH, 2)


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.netG = nn.Sequential(nn.Linear(Z, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        self.netD = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))


def gradient_penalty(netD, real, fake):
    alpha = torch.rand(BATCH, 1)
    inter = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    g, = autograd.grad(netD(inter).sum(), inter, create_graph=True)
    return LAMBDA * ((g.norm(2, dim=1) - 1) ** 2).mean()


gan = GAN()
optD = torch.optim.Adam(gan.netD.parameters(), lr=2e-3, betas=(0.0, 0.9))
optG = torch.optim.Adam(gan.netG.parameters(), lr=1e-3, betas=(0.0, 0.9))
handle = rangewatch.attach(gan, [optD, optG])
for iteration in range(160):
    for p in gan.netD.parameters():
        p.requires_grad_(True)
    for _ in range(CRITIC_ITERS):
        real = real_points()
        fake = gan.netG(torch.randn(BATCH, Z)).detach()
        optD.zero_grad()
        errD = gan.netD(fake).mean() - gan.netD(real).mean() + gradient_penalty(gan.netD, real, fake)
        errD.backward()
        optD.step()
    for p in gan.netD.parameters():
        p.requires_grad_(False)
    optG.zero_grad()
    fake = gan.netG(torch.randn(BATCH, Z))
    errG = -gan.netD(fake).mean()
    errG.backward()
    optG.step()
    if iteration % 20 == 0 or iteration == 159:
        off = (fake.norm(dim=1) - 1.5).abs().mean().item()
        print(f"[{iteration}] Loss_D: {errD.item():+.4f} Loss_G: {errG.item():+.4f} distance from the ring {off:.3f} spread {fake.std(0).mean().item():.2f}", flush=True)
handle.detach()
