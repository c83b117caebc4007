"""RealNVP in 2-D with a tanh squash at its end and the log-det by the formula log(1 - tanh(u)^2). FAULT from step 130: the data's
second stage is wider, tanh is 1 exactly and log(0) = -Inf. Cause: forward_arithmetic, step 130, place squash (its output log-det).
Right: keep the log away from 0 (eps, clamp, stable formula). Wrong: learning rate, mask, weight, range of the dtype, GradScaler."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [130, 130], "place": r"(squash|flow\.squash|)", "rank": 0,
          "wrong": ["learning rate", "[Mm]ask", "checkpoint", "GradScaler", "bfloat16"], "right": "log|zero|away|eps"}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(1); torch.set_num_threads(1)

class Coupling(nn.Module):
    def __init__(self, flip, hidden=32):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(1, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 2))
    def forward(self, z):
        a, b = z.flip(1).split(1, 1) if self.flip else z.split(1, 1)
        log_s, t = self.net(a).chunk(2, 1)
        log_s = 0.5 * torch.tanh(log_s)
        out = torch.cat([a, b * log_s.exp() + t], 1)
        return (out.flip(1) if self.flip else out), log_s.squeeze(1)

class Squash(nn.Module):
    def forward(self, u):
        y = torch.tanh(u)
        return y, torch.log(1 - y ** 2).sum(1)

class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.couplings = nn.ModuleList(Coupling(i % 2 == 1) for i in range(4))
        self.squash = Squash()
        self.prior = nn.Parameter(torch.zeros(2))
    def forward(self, x):
        total = x.new_zeros(len(x))
        for layer in self.couplings:
            x, ld = layer(x)
            total = total + ld
        y, ld = self.squash(x)
        return -0.5 * ((y - self.prior) ** 2).sum(1) - math.log(2 * math.pi), total + ld

flow = Flow()
opt = torch.optim.Adam(flow.parameters(), 5e-4)
rangewatch.attach(flow, opt)
for i in range(200):
    t = 2 * math.pi * torch.rand(128)
    x = torch.stack([t.cos(), t.sin()], 1) + 0.1 * torch.randn(128, 2)
    if i >= 130:
        x = x * torch.tensor([1.0, 14.0])
    logp, logdet = flow(x)
    nll = -(logp + logdet).mean()
    opt.zero_grad(); nll.backward(); opt.step()
