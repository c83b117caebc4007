"""A RealNVP of six affine couplings with exp(scale) that nothing bounds. FAULT at step 140: one of 64 readings is in other units, hundreds instead of
ones. exp overflows in the couplings, and Inf minus Inf is NaN. Without Rangewatch: loss 1.21 to -1.30 at step 139 with |z| of 1.2 to 3.4 where printed, NaN at step 140.
Report: VincentStimper/normalizing-flows#47 (exp in AffineCoupling may cause Inf), rosinality/glow-pytorch#25.
Cause: forward arithmetic (or data). Step: 140. Right: exp / bound the scale / the outlier. Wrong: learning rate, attention mask, GradScaler."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [140, 141], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "exp|overflow|clamp|tanh|range|outlier|input|batch|data"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(612); torch.set_num_threads(1)
DIM = 6


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.param_map = nn.Sequential(nn.Linear(DIM // 2, 48), nn.ReLU(), nn.Linear(48, DIM))
        nn.init.normal_(self.param_map[2].weight, std=0.01)
        nn.init.zeros_(self.param_map[2].bias)

    def forward(self, z):
        a, b = z.chunk(2, 1)
        if self.flip:
            a, b = b, a
        shift, scale = self.param_map(a).chunk(2, 1)
        b = b * torch.exp(scale) + shift
        return torch.cat([b, a] if self.flip else [a, b], 1), scale.sum(1)


class RealNVP(nn.Module):
    def __init__(self):
        super().__init__()
        self.flows = nn.ModuleList([Coupling(i % 2 == 1) for i in range(6)])

    def forward(self, x):
        total = 0
        for flow in self.flows:
            x, log_det = flow(x)
            total = total + log_det
        return x, total


mix = torch.randn(DIM, DIM) / DIM ** 0.5
model = RealNVP()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x = torch.tanh(torch.randn(64, DIM) @ mix) + 0.1 * torch.randn(64, DIM)
    if step == 140:
        x[11] = 600.0 * torch.randn(DIM)  # one reading in other units
    z, log_det = model(x)
    loss = (0.5 * z.pow(2).sum(1) - log_det).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (139, 140, 141):
        print(step, loss.item(), z.abs().max().item(), flush=True)
handle.detach()
