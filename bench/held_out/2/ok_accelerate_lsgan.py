"""Least-squares GAN on a ring of eight Gaussians with Accelerate: two models, two optimizers, five discriminator updates to one of the generator's, TTUR learning
rates. HEALTHY: neither loss falls, they circle each other; the generator's gradients are at times a hundred times larger than at others."""
EXPECT = {"healthy": True}
import math
import torch
from accelerate import Accelerator
from torch import nn
from rangewatch.integrations.accelerate import attach

torch.set_num_threads(1)
torch.manual_seed(2)
accelerator = Accelerator(cpu=True)


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))


def ring(n):
    angle = torch.randint(0, 8, (n,)) * math.pi / 4
    return 2 * torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(n, 2)


gan = GAN()
opt_g = torch.optim.Adam(gan.generator.parameters(), lr=2e-4, betas=(0.5, 0.9))
opt_d = torch.optim.Adam(gan.discriminator.parameters(), lr=8e-4, betas=(0.5, 0.9))
gan, opt_g, opt_d = accelerator.prepare(gan, opt_g, opt_d)
handle = attach(gan, [opt_d, opt_g])
for step in range(200):
    for _ in range(5):
        fake = gan.generator(torch.randn(64, 8)).detach()
        d_loss = ((gan.discriminator(ring(64)) - 1) ** 2).mean() / 2 + (gan.discriminator(fake) ** 2).mean() / 2
        opt_d.zero_grad()
        accelerator.backward(d_loss)
        opt_d.step()
    gan.discriminator.requires_grad_(False)
    g_loss = ((gan.discriminator(gan.generator(torch.randn(64, 8))) - 1) ** 2).mean() / 2
    opt_g.zero_grad()
    accelerator.backward(g_loss)
    opt_g.step()
    gan.discriminator.requires_grad_(True)
    handle.log(d_loss=d_loss.item(), g_loss=g_loss.item())
    if step % 20 == 0:
        print(step, round(d_loss.item(), 4), round(g_loss.item(), 4))
