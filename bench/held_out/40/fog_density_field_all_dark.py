"""Tomography of a fog tank: an MLP gives the density at points along a ray, transmission = exp(-sum of densities * step); fitted to simulated rays, Adam.
FAULT at step 0: the bias of the density layer begins at -6 ("so that the tank begins empty") in front of a clamp(min=0): every density is exactly 0, its gradient too, and nothing is ever trained.
Without Rangewatch: loss 0.19 to 0.22 from first to last, gradient norm 0, no ray loses any light.
Cause: dead_units (clamp closed everywhere) / weight (initial bias) / no_gradient. Step: from 0. Right: softplus instead of the clamp, a bias about 0. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["dead_units", "weight", "no_gradient"], "step": [0, 60], "place": None, "rank": None,
          "right": r"(?i)dead|relu|clamp|softplus|bias|leaky|activation|init|never|zero gradient|gradient.*zero", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(31); torch.set_num_threads(1)


class DensityField(nn.Module):
    def __init__(self, freqs=4, width=64):
        super().__init__()
        self.register_buffer("freqs", math.pi * 2.0 ** torch.arange(freqs))
        self.l1 = nn.Linear(4 * freqs, width)
        self.l2 = nn.Linear(width, width)
        self.density = nn.Linear(width, 1)
        nn.init.constant_(self.density.bias, -6.0)

    def forward(self, xy):
        ang = xy[..., None] * self.freqs
        h = torch.cat([ang.sin(), ang.cos()], -1).flatten(-2)
        h = torch.sin(self.l1(h))
        h = torch.sin(self.l2(h))
        return torch.clamp(self.density(h).squeeze(-1), min=0)


def true_density(xy):
    a = torch.exp(-((xy - torch.tensor([0.3, 0.2])) ** 2).sum(-1) / 0.05)
    b = torch.exp(-((xy - torch.tensor([-0.4, -0.1])) ** 2).sum(-1) / 0.1)
    return 2 * a + 1.5 * b


def rays(n, samples=24):
    theta, offset = 2 * math.pi * torch.rand(n), 1.2 * torch.rand(n) - 0.6
    along = torch.linspace(-1, 1, samples)
    d = torch.stack([theta.cos(), theta.sin()], 1)
    normal = torch.stack([-d[:, 1], d[:, 0]], 1)
    return offset[:, None, None] * normal[:, None] + along[None, :, None] * d[:, None]


def transmission(density):
    return torch.exp(-density.sum(1) * (2 / 24))


field = DensityField()
optimizer = torch.optim.Adam(field.parameters(), lr=2e-3)
handle = rangewatch.attach(field, optimizer)
for step in range(250):
    points = rays(64)
    want = transmission(true_density(points))
    got = transmission(field(points))
    loss = (got - want).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 25 == 0:
        gn = sum(p.grad.norm() ** 2 for p in field.parameters()).sqrt().item()
        print(f"step {step} loss {loss.item():.5f} gradient norm {gn:.2e} brightest {1 - got.min().item():.3f}", flush=True)
handle.detach()
