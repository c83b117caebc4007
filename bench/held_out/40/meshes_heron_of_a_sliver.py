"""Curvature class of mesh facets from the three side lengths of a triangle; the network takes the area as a feature, by Heron's formula, in float32 (Adam).
FAULT at step 83: the batch holds slivers, triangles whose corners lie nearly in a line; by rounding the radicand of Heron's root comes out below zero and sqrt gives NaN.
Without Rangewatch: loss 1.04 to 0.38 at step 82, NaN at 83 and ever after.
Cause: forward_arithmetic (square root of a negative number) / data (degenerate triangle). Step: 83. Right: clamp the radicand at 0 or above (plus an eps), drop degenerate facets. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [83, 85], "place": None, "rank": None,
          "right": r"(?i)sqrt|root|negative|clamp|eps|domain|degenerate|input|rows|batch|forward", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
import torch.nn as nn
import rangewatch

torch.manual_seed(414)
torch.set_num_threads(1)


class HeronArea(nn.Module):
    def forward(self, sides):
        a, b, c = sides.unbind(-1)
        s = (a + b + c) / 2
        return torch.sqrt(s * (s - a) * (s - b) * (s - c))


class FacetNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.area = HeronArea()
        self.trunk = nn.Sequential(nn.Linear(5, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.to_class = nn.Linear(64, 3)

    def forward(self, sides):
        area = self.area(sides)
        per = sides.sum(-1)
        roundness = area / per ** 2
        f = torch.cat([sides, area[:, None], 20 * roundness[:, None]], 1)
        return self.to_class(self.trunk(f))


def facets(n, slivers=0):
    # corner 0 left, corner 1 right, corner 2 well above the line between them
    p = 0.3 * torch.randn(n, 3, 2)
    p[:, 0, 0] -= 1.5 + torch.rand(n)
    p[:, 1, 0] += 1.5 + torch.rand(n)
    p[:, 2, 0] += 3 * torch.rand(n) - 1.5
    p[:, 2, 1] = 1 + 2 * torch.rand(n)
    if slivers:
        t = torch.rand(slivers, 1)
        p[:slivers, 2] = p[:slivers, 0] * t + p[:slivers, 1] * (1 - t)
    sides = torch.stack([(p[:, i] - p[:, j]).norm(dim=-1) for i, j in ((1, 2), (0, 2), (0, 1))], 1)
    longest = sides.max(1).values / sides.sum(1)
    return sides, (longest > 0.42).long() + (longest > 0.45).long()


net = FacetNet()
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, opt)
for step in range(180):
    sides, label = facets(128, slivers=24 if step == 83 else 0)
    loss = nn.functional.cross_entropy(net(sides), label)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or step in (82, 83, 84):
        print(f"step {step} loss {loss.item():.4f}", flush=True)
handle.detach()
