"""A GAN draws points of a ring of eight blobs; the generator is watched (Adam, betas 0.5/0.999), non-saturating loss.
FAULT at step 0: the generator's step uses the same `fake.detach()` as the discriminator's; no gradient reaches the generator, its weights stay as initialised.
Without Rangewatch: D 1.35 to 0.0025, G 0.70 up to 6.5; the fakes keep a mean radius of 0.12 to 0.13 from first to last (the ring has 2).
Cause: no_gradient (detached). Step: from 0. Right: do not detach the fakes in the generator's step. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["no_gradient"], "step": [0, 60], "place": None, "rank": None,
          "right": r"(?i)detach|no gradient|graph|not reach", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(88); torch.set_num_threads(1)
LATENT = 8


def real_points(n):
    k = torch.randint(0, 8, (n,)).float() * math.pi / 4
    return torch.stack([k.cos(), k.sin()], 1) * 2 + 0.08 * torch.randn(n, 2)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(LATENT, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 2))

    def forward(self, z):
        return self.net(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 96), nn.LeakyReLU(0.2), nn.Linear(96, 96), nn.LeakyReLU(0.2), nn.Linear(96, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


G, D = Generator(), Discriminator()
opt_G = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.999))
opt_D = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.999))
handle = rangewatch.attach(G, opt_G)
for step in range(240):
    real = real_points(128)
    fake = G(torch.randn(128, LATENT)).detach()
    # --- discriminator
    d_loss = F.softplus(-D(real)).mean() + F.softplus(D(fake)).mean()
    opt_D.zero_grad()
    d_loss.backward()
    opt_D.step()
    # --- generator
    g_loss = F.softplus(-D(fake)).mean()
    opt_G.zero_grad()
    g_loss.backward()
    opt_G.step()
    if step % 30 == 0 or step == 239:
        radius = fake.norm(dim=1).mean().item()
        print(f"[{step}] D {d_loss.item():.4f} G {g_loss.item():.4f} mean radius of the fakes {radius:.3f}", flush=True)
    handle.log(loss=g_loss.item())
handle.detach()
