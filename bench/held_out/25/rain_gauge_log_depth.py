"""A residual net that foretells the flow of a river from the depth of rain at 30 gauges; the depths go through log(1 + x) in its first module. FAULT at
step 115: gauge 7 is calibrated anew and reads down to -2 mm; the log of a negative value is NaN, and so is all that follows.
Without Rangewatch: loss 1.2 to 0.009 at step 114, NaN from step 115 on.
Cause: forward_arithmetic or data. Step: 115. Right: log / negative / clamp / the input. Wrong: learning rate, GradScaler, mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [114, 116], "place": None, "rank": 0,
          "right": "(?i)log|negative|clamp|input|batch|data", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2505); torch.set_num_threads(1)


class LogDepth(nn.Module):
    def forward(self, x):
        return torch.log(1 + x)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.b(F.silu(self.a(self.norm(x))))


river = nn.Sequential(LogDepth(), nn.Linear(30, 64), Residual(64), Residual(64), nn.Linear(64, 1))
slope = torch.rand(30) / 8
optimizer = torch.optim.NAdam(river.parameters(), lr=2e-3)
handle = rangewatch.attach(river, optimizer)
for step in range(180):
    rain = torch.distributions.Exponential(0.3).sample((96, 30))
    flow = (rain.sqrt() @ slope)[:, None] - 1.5
    if step >= 115:
        rain[:, 7] -= 2.0
    loss = F.smooth_l1_loss(river(rain), flow)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (114, 115, 116, 179):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
