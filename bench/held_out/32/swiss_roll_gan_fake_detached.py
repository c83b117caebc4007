"""A GAN learns points on a spiral, Adam with betas (0.5, 0.999) for both nets; the generator is watched. FAULT from step 0: the generator's own loss is taken of `disc(fake.detach())`, copied from the discriminator's half: no gradient reaches the generator.
Without Rangewatch: g 0.69 to 4.7, d 1.37 to 0.02, the spread of the fakes stays 0.15 (not detached: g some 0.8, d some 1.35, spread up to 1).
Cause: no_gradient. Step: from 0. Right: detach / graph cut. Wrong: learning rate, GradScaler, clip."""
EXPECT = {"cause": ["no_gradient"], "step": [0, 40], "place": None, "rank": None,
          "right": "(?i)detach|graph|no_grad|requires_grad|gradient", "wrong": ["(?i)(lower|raise) the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(413); torch.set_num_threads(1)


def roll(n):
    a = 1.0 + 2.0 * torch.rand(n, 1)
    return torch.cat([a * torch.cos(2 * a), a * torch.sin(2 * a)], 1) / 2 + 0.03 * torch.randn(n, 2)


gen = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
disc = nn.Sequential(nn.Linear(2, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
opt_d = torch.optim.Adam(disc.parameters(), lr=1e-3, betas=(0.5, 0.999))
opt_g = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.5, 0.999))
one, zero = torch.ones(64, 1), torch.zeros(64, 1)
handle = rangewatch.attach(gen, opt_g)
for step in range(240):
    real, fake = roll(64), gen(torch.randn(64, 4))
    loss_d = F.binary_cross_entropy_with_logits(disc(real), one) + F.binary_cross_entropy_with_logits(disc(fake.detach()), zero)
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
    loss_g = F.binary_cross_entropy_with_logits(disc(fake.detach()), one)
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    if step % 20 == 0 or step == 239:
        print(step, "g", loss_g.item(), "d", loss_d.item(), "spread of fakes", fake.std().item(), flush=True)
    handle.log(loss=loss_g.item(), loss_d=loss_d.item())
handle.detach()
