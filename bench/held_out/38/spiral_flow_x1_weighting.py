"""A rectified flow learns a two-armed spiral; the net names the end point x1, and the loss is turned to one on velocities, which makes the weight 1/(1-t)^2 (as 1/sigma^2 is in a diffusion); float32, Adam.
FAULT from step 0: t is drawn from all of [0, 1) and nothing bounds the weight; a row with t near 1 (1-t = 0.001) has a weight of a million and is the whole of its batch's loss and gradient.
Without Rangewatch: the loss jumps between 55 and 1.4e8 (largest weight 9e10 in step 25); the error of x1 falls to 0.84 at step 25 and is 0.93 to 1.01 from step 75 on (with 1-t clamped at 0.2: 0.59 at step 275, loss 2).
Cause: forward_arithmetic (how the loss is weighted). Step: the first spikes come in the first dozens. Right: bound / cap the weight (loss weighting, t). Wrong: GradScaler, attention mask, initialisation."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [0, 150], "place": None, "rank": None,
          "right": r"(?i)weight(s|ing)? (of|in) the loss|loss|bound|clamp|cap\b|1/sigma", "wrong": ["GradScaler", "attention mask", "initiali[sz]ation"]}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(61); torch.set_num_threads(1)


def spiral(n):
    r = torch.rand(n).sqrt()
    a = 3 * math.pi * r + math.pi * torch.randint(0, 2, (n,))
    return torch.stack([r * a.cos(), r * a.sin()], 1) * 1.5 + 0.03 * torch.randn(n, 2)


class EndPoint(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.clock = nn.Linear(8, width)
        self.where = nn.Linear(2, width)
        self.body = nn.Sequential(nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.x1 = nn.Linear(width, 2)

    def forward(self, x, t):
        waves = torch.cat([torch.sin(t[:, None] * 2 ** k) for k in range(8)], 1)
        return self.x1(self.body(self.clock(waves) + self.where(x)))


def weight(t):
    return 1 / (1 - t) ** 2


flow = EndPoint()
adam = torch.optim.Adam(flow.parameters(), lr=2e-3)
handle = rangewatch.attach(flow, adam)
probe_x1, probe_t, probe_x0 = spiral(512), torch.linspace(0.05, 0.95, 512), torch.randn(512, 2)
for step in range(300):
    x1, x0, t = spiral(96), torch.randn(96, 2), torch.rand(96)
    xt = t[:, None] * x1 + (1 - t[:, None]) * x0
    loss = (weight(t) * (flow(xt, t) - x1).square().sum(1)).mean()
    adam.zero_grad()
    loss.backward()
    adam.step()
    if step % 25 == 0 or step == 299:
        with torch.no_grad():
            p = probe_t[:, None]
            err = (flow(p * probe_x1 + (1 - p) * probe_x0, probe_t) - probe_x1).square().sum(1).mean()
        print(step, f"loss {loss.item():.4g} largest weight {weight(t).max().item():.3g} error of x1 {err.item():.4g}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
