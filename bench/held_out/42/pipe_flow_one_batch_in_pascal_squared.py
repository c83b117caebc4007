"""Surrogate of the pressure drop along a pipe: 1-d convolutions with BatchNorm over twelve sensor profiles, Adam, validation in eval mode every 15 steps.
FAULT at step 90: one batch comes from a logger that writes another unit (values of 1e8 where 1 is usual). The training loss hardly notices, for batch statistics divide it away, but the running mean and variance of BatchNorm are poisoned and every validation after it is far off.
Without Rangewatch: loss 0.30 to 0.11 and 0.12 at 90, later 0.08; validation 0.087 at 89, 0.31 from 90 to the end; running mean 0.07 at 89 and 5.5e6 at 90.
Cause: data (one batch of 1e8). Step: 90. Right: check the units or range of the batch, reset the running statistics. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [89, 92], "place": None, "rank": None,
          "right": r"(?i)batch|input|data|unit|range|running|statistic|outlier|rows|scale", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(19)
torch.set_num_threads(1)
mix = torch.randn(12) / 3


def pipe(n):
    profile = torch.randn(n, 12, 32).cumsum(2) * 0.2 + torch.randn(n, 12, 1)
    drop = torch.tanh((profile[:, :, -1] - profile[:, :, 0]) @ mix) + 0.5 * torch.sin(profile.mean((1, 2)) * 3)
    return profile, drop


def block(i, o):
    return nn.Sequential(nn.Conv1d(i, o, 5, padding=2), nn.BatchNorm1d(o), nn.ReLU())


class Surrogate(nn.Module):
    def __init__(self):
        super().__init__()
        self.entry = nn.BatchNorm1d(12)
        self.blocks = nn.Sequential(block(12, 24), nn.MaxPool1d(2), block(24, 24))
        self.drop = nn.Linear(24 * 16, 1)

    def forward(self, profile):
        return self.drop(self.blocks(self.entry(profile)).flatten(1))[:, 0]


net = Surrogate()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
handle = rangewatch.attach(net, opt)
held_out = pipe(256)
for step in range(181):
    net.train()
    profile, drop = pipe(48)
    if step == 90:
        profile = profile * 1e8
    loss = nn.functional.smooth_l1_loss(net(profile), drop)
    opt.zero_grad()
    loss.backward()
    opt.step()
    handle.log(loss=loss.item())
    if step % 15 == 0 or 88 < step < 93:
        net.eval()
        with torch.no_grad():
            val = nn.functional.smooth_l1_loss(net(held_out[0]), held_out[1]).item()
        print(f"step {step} loss {loss.item():.4f} validation {val:.4f} running mean {net.entry.running_mean.abs().max().item():.3g}", flush=True)
handle.detach()
