"""A SIREN fits a height map from coordinates (Adam, float32); an exponential average of the weights (decay 0.998) is kept, and previews are rendered from it.
FAULT at step 150 (the first preview; again at 225): `with averaged(...)` copies the average into the net and its `finally` restores from `backup`, but the backup holds references, not copies: `copy_` has
already written the average over them. The net trains on from the average, which lags far behind.
Without Rangewatch: loss 0.45 to 0.0001 at step 149, 0.091 at step 150, back to 0.0003 at step 224, 0.063 at step 225.
Cause: weight. Step: 150 (again 225). Right: the weights were changed outside of the optimizer / restore the weights after the EMA preview. Wrong: lower the learning rate, GradScaler, NaN in the data."""
EXPECT = {"cause": ["weight"], "step": [149, 153], "place": None, "rank": None,
          "right": r"(?i)EMA|average|restor|swap|copied|overwrit|outside|load|between (the )?steps", "wrong": ["[Ll]ower the learning rate", "GradScaler", "[Mm]issing values"]}
import contextlib
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3003)
torch.set_num_threads(1)


def height(xy):
    x, y = xy[:, 0], xy[:, 1]
    return torch.sin(5 * x + 2 * y) * torch.cos(4 * y) + 0.5 * torch.exp(-8 * (x ** 2 + y ** 2)) + 0.3 * torch.sin(9 * x * y)


class Wave(nn.Module):
    def __init__(self, fan_in, fan_out, first=False):
        super().__init__()
        self.lin = nn.Linear(fan_in, fan_out)
        bound = 1 / fan_in if first else math.sqrt(6 / fan_in) / 12
        nn.init.uniform_(self.lin.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(12 * self.lin(x))


class Terrain(nn.Module):
    def __init__(self):
        super().__init__()
        self.near, self.mid, self.far = Wave(2, 64, first=True), Wave(64, 64), Wave(64, 64)
        self.level = nn.Linear(64, 1)

    def forward(self, xy):
        return self.level(self.far(self.mid(self.near(xy))))[:, 0]


@contextlib.contextmanager
def averaged(net, ema):
    backup = [p.data for p in net.parameters()]
    try:
        for p, e in zip(net.parameters(), ema):
            p.data.copy_(e)
        yield net
    finally:
        for p, b in zip(net.parameters(), backup):
            p.data.copy_(b)


terrain = Terrain()
ema = [p.detach().clone() for p in terrain.parameters()]
adam = torch.optim.Adam(terrain.parameters(), lr=1e-3)
handle = rangewatch.attach(terrain, adam)
for step in range(300):
    if step in (150, 225):
        with averaged(terrain, ema) as net, torch.no_grad():
            xy = torch.rand(400, 2) * 2 - 1
            print("preview's error", (net(xy) - height(xy)).square().mean().item())
    xy = torch.rand(256, 2) * 2 - 1
    loss = F.mse_loss(terrain(xy), height(xy))
    adam.zero_grad()
    loss.backward()
    adam.step()
    with torch.no_grad():
        for e, p in zip(ema, terrain.parameters()):
            e.lerp_(p, 0.002)
    if step % 25 == 0 or step in (149, 151, 224, 299):
        print(step, f"loss {loss.item():.5f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
