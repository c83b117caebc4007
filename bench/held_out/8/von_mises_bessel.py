"""A net that predicts the direction of the wind as a von Mises distribution (mean direction and concentration), Adam; the log-likelihood takes
log(i0(kappa)) literally. FAULT: as the net grows sure, kappa passes 91 and i0 overflows in float32: the loss is Inf and the gradient NaN.
Without Rangewatch: loss 2.88 to -0.41 at step 80 (kappa up to 40), Inf at step 89 (kappa up to 98), NaN from step 90 on.
Report: stan-dev/math#1076 (numeric overflow for large kappa), pymc-devs/pymc#2832, circstat/circstat-matlab#6.
Cause: forward_arithmetic. Step: 89. Right: overflow / exp / log / clamp / scaled. Wrong: GradScaler, mask, data order."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [89, 90], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "shuffl"],
          "right": "overflow|exp|log|clamp|stable|scaled|[Ii]nf|range|large"}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(807); torch.set_num_threads(1)


class Wind(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.direction, self.concentration = nn.Linear(64, 2), nn.Linear(64, 1)

    def forward(self, x):
        h = self.body(x)
        d = self.direction(h)
        return torch.atan2(d[:, 0], d[:, 1]), self.concentration(h).squeeze(1).exp()


def negative_log_likelihood(mean, kappa, angle):
    return (torch.log(2 * math.pi * torch.special.i0(kappa)) - kappa * torch.cos(angle - mean)).mean()


model = Wind()
optimizer = torch.optim.Adam(model.parameters(), lr=1.5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    x = torch.randn(64, 6)
    angle = torch.atan2(x[:, 0] + 0.4 * x[:, 2], 1.5 + x[:, 1]) + 0.02 * torch.randn(64)
    mean, kappa = model(x)
    loss = negative_log_likelihood(mean, kappa, angle)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 10 == 0 or not math.isfinite(loss.item()) and step < 120:
        print(step, loss.item(), "kappa up to", kappa.max().item(), flush=True)
handle.detach()
