"""Brightness of stars from spectra, each row weighted by 1 / sigma^2 of its measurement. FAULT from step 100 on: the floor of sigma (0.1) is left out, and
single rows of sigma near 0 outweigh all others by thousands.
Without Rangewatch: loss 4.25 to 0.25 at step 99, 95 at step 100, 2.7e7 at step 101, inf at step 103, then NaN.
Variant of: diffusion_with_weights_that_nothing_bounds (here weights of measurements).
Cause: data, forward_arithmetic or clip. Step: from 100 on. Right: weight / clamp / bound / clip / batch. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data", "forward_arithmetic", "clip"], "step": [99, 160], "place": None, "rank": 0, "wrong": ["GradScaler", "attention mask"],
          "right": "weight|clamp|bound|clip|batch|data|outlier|sample"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1422); torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, sigma = torch.randn(32, 12), torch.rand(32)
    y = x[:, 0] + x[:, 1].abs() + sigma * torch.randn(32)
    w = 1 / (sigma.clamp(min=0.3) if step < 100 else sigma) ** 2
    loss = (w * (model(x)[:, 0] - y) ** 2).mean() / 4
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 104:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
