"""An energy-based model of points on two moons: contrastive divergence, negatives by twenty steps of Langevin dynamics from a replay buffer, energies
held small by a penalty. The loss is a difference of energies: it hovers about 0, is negative at times and says nothing of progress. HEALTHY.
Without Rangewatch: loss between -0.04 and 0.02 all along; the share of samples near the moons goes from a third to three quarters."""
EXPECT = {"healthy": True}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(533); torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.0, 0.999))
handle = rangewatch.attach(model, optimizer)
buffer = torch.rand(1024, 2) * 4 - 2


def moons(n):
    t, half = math.pi * torch.rand(n), torch.randint(0, 2, (n,))
    x = torch.stack([torch.where(half == 0, t.cos(), 1 - t.cos()) - 0.5, torch.where(half == 0, t.sin(), 0.5 - t.sin()) - 0.25], 1)
    return x + 0.06 * torch.randn(n, 2)


def langevin(x, steps=20):
    for p in model.parameters():
        p.requires_grad_(False)
    for _ in range(steps):
        x = x.detach().requires_grad_(True)
        gradient = torch.autograd.grad(model(x).sum(), x)[0]
        x = (x - 0.05 * gradient.clamp(-2, 2) + 0.03 * torch.randn_like(x)).clamp(-2.5, 2.5)
    for p in model.parameters():
        p.requires_grad_(True)
    return x.detach()


for step in range(240):
    rows = torch.randperm(1024)[:128]
    start = torch.where(torch.rand(128, 1) < 0.05, torch.rand(128, 2) * 4 - 2, buffer[rows])
    negative = langevin(start)
    buffer[rows] = negative
    low, high = model(moons(128)).squeeze(1), model(negative).squeeze(1)
    loss = (low - high).mean() + 0.1 * (low.pow(2) + high.pow(2)).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    handle.log(loss=loss)
    if step % 20 == 0 or step == 239:
        near = (torch.cdist(negative, moons(2000)).min(1).values < 0.2).float().mean().item()
        print(step, loss.item(), "near the moons", near, flush=True)
handle.detach()
