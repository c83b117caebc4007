"""Hourly bike rentals from calendar and weather (MLP with dropout-free residual blocks, AdamW). The label column is a vector (N,), the network gives (N, 1).
FAULT at step 0: natural. F.mse_loss broadcasts (N, 1) against (N,) to N x N (PyTorch only warns): each prediction is pulled to the batch's mean.
Without Rangewatch: mse stays 0.8 to 1.4, predictions have a standard deviation of 0.01 to 0.02, R2 0.01; with pred[:, 0] mse 0.045, R2 0.96.
Cause: loss. Step: 0 to 150. Right: squeeze / shapes / broadcast. Wrong: lower the learning rate, GradScaler, zero_grad, clip."""
EXPECT = {"cause": ["loss"], "step": [0, 150], "place": None, "rank": None,
          "right": r"(?i)broadcast|shape|squeeze|unsqueeze|\(N, ?1\)", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)call .{0,20}zero_grad", "(?i)clip the grad"]}
import math
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(365)
torch.set_num_threads(1)
N = 6000
hour, day = torch.randint(0, 24, (N,)), torch.randint(0, 7, (N,))
temp, rain = torch.randn(N), (torch.rand(N) < 0.2).float()
work = (day < 5).float()
rush = torch.exp(-((hour - 8.0) / 1.5) ** 2) + torch.exp(-((hour - 17.5) / 2.0) ** 2)
rentals = work * 2.5 * rush + (1 - work) * 1.6 * torch.exp(-((hour - 14.0) / 3.5) ** 2) + 0.4 * temp - 0.9 * rain + 0.15 * torch.randn(N)
rentals = (rentals - rentals.mean()) / rentals.std()
feats = torch.cat([torch.sin(2 * math.pi * hour / 24)[:, None], torch.cos(2 * math.pi * hour / 24)[:, None], F.one_hot(day, 7), temp[:, None], rain[:, None]], 1)


class Residual(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d))

    def forward(self, x):
        return x + self.inner(x)


forecaster = nn.Sequential(nn.Linear(11, 48), Residual(48), Residual(48), nn.SiLU(), nn.Linear(48, 1))
optimizer = torch.optim.AdamW(forecaster.parameters(), lr=2e-3)
handle = rangewatch.attach(forecaster, optimizer)
for step in range(300):
    idx = torch.randint(0, N, (64,))
    pred = forecaster(feats[idx])
    loss = F.mse_loss(pred, rentals[idx])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0 or step == 299:
        with torch.no_grad():
            r2 = 1 - ((forecaster(feats).flatten() - rentals) ** 2).mean().item()
        print(f"step {step} mse {loss.item():.4f} pred std {pred.std().item():.4f} R2 {r2:.3f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
