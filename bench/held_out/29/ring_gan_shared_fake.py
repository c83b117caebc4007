"""A GAN that learns a ring of points. FAULT from the start: the fakes are made once a step and detached for the discriminator; the generator's loss uses
the same detached fakes, so that no gradient ever reaches the generator: it never moves, the discriminator wins.
Without Rangewatch: d 1.40 to 4e-5, g 0.72 to 10.4; the mean radius of the fakes is 0.20 in all steps (2 is right).
Cause: no_gradient or backward_arithmetic (the graph is cut), optimizer. Step: any. Place: the generator. Right: detach / graph. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["no_gradient", "backward_arithmetic", "optimizer"], "step": [0, 200], "place": "(gen|generator).*", "rank": None,
          "right": "(?i)detach|graph|no_grad|requires_grad|gradient", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2903); torch.set_num_threads(1)


def mlp(a, h, b):
    return nn.Sequential(nn.Linear(a, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, b))


def real_points(n):
    a = 6.2832 * torch.rand(n)
    return 2 * torch.stack((a.cos(), a.sin()), 1) + 0.08 * torch.randn(n, 2)


generator, critic = mlp(8, 64, 2), mlp(2, 64, 1)
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
opt_d = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
handle = rangewatch.attach(nn.ModuleDict({"generator": generator, "critic": critic}), [opt_g, opt_d])
for step in range(250):
    real = real_points(128)
    fake = generator(torch.randn(128, 8)).detach()

    opt_d.zero_grad()
    d_loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake)).mean()
    d_loss.backward()
    opt_d.step()

    opt_g.zero_grad()
    g_loss = F.softplus(-critic(fake)).mean()
    g_loss.backward()
    opt_g.step()

    if step % 25 == 0 or step == 249:
        print(step, "d", d_loss.item(), "g", g_loss.item(), "radius of fakes", fake.norm(dim=1).mean().item(), flush=True)
    handle.log(loss=d_loss.item(), g_loss=g_loss.item())
handle.detach()
