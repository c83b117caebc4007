"""A Kolmogorov-Arnold network (cubic B-splines, two layers) for regression from eight sensors; grids are fitted to the samples every 40 steps. FAULT
at step 120: in the batch that the grid is fitted to, sensor 3 is stuck at one value: all of its knots are equal and the recursion of the B-splines
divides 0 by 0. Without Rangewatch: loss 0.95 to 0.007 at step 119, NaN at step 120 and all weights NaN from step 121 on.
Report: KindXiaoming/pykan#230 (output all NaN from the second iteration on), pykan#457 (NaN once the grid is updated), Blealtan/efficient-kan#59.
Cause: forward arithmetic, 0 / 0 in the first layer. Place: layers.0. Right: the division / equal knots / eps / margin of the grid. Wrong: learning
rate, mask, GradScaler."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [120, 121], "place": r"layers\.0.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "divi|0 / 0|eps|zero|clamp"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(501); torch.set_num_threads(1)
K, G = 3, 6


class KANLayer(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        h = 2.0 / G
        self.register_buffer("grid", (torch.arange(-K, G + K + 1) * h - 1).repeat(i, 1))
        self.base = nn.Parameter(torch.randn(o, i) / i ** 0.5)
        self.coef = nn.Parameter(torch.randn(o, i, G + K) * 0.05)

    def splines(self, x):
        g, x = self.grid, x.unsqueeze(-1)
        b = ((x >= g[:, :-1]) & (x < g[:, 1:])).float()
        for k in range(1, K + 1):
            left = (x - g[:, : -(k + 1)]) / (g[:, k:-1] - g[:, : -(k + 1)])
            right = (g[:, k + 1:] - x) / (g[:, k + 1:] - g[:, 1:-k])
            b = left * b[..., :-1] + right * b[..., 1:]
        return b

    @torch.no_grad()
    def fit_grid(self, x):
        low, high = x.min(0).values, x.max(0).values
        h = (high - low) / G
        self.grid.copy_(low[:, None] + torch.arange(-K, G + K + 1) * h[:, None])

    def forward(self, x):
        return F.silu(x) @ self.base.T + torch.einsum("bik,oik->bo", self.splines(x), self.coef)


class KAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([KANLayer(8, 12), KANLayer(12, 1)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def fit_grids(self, x):
        for layer in self.layers:
            layer.fit_grid(x)
            x = layer(x)


model = KAN()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x = torch.rand(256, 8) * 2 - 1
    if step >= 120 and step < 122:
        x[:, 3] = 0.25  # the sensor hangs
    y = torch.sin(3 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] + x[:, 3:4] ** 2
    if step and step % 40 == 0:
        model.fit_grids(x)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss)
    if step % 20 == 0 or step in (119, 120, 121):
        print(step, loss.item(), flush=True)
handle.detach()
