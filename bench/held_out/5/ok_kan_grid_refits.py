"""A Kolmogorov-Arnold network whose grids are fitted to the samples at steps 40, 80 and 120, with a margin, and whose coefficients are then found anew
by least squares so that the function stays what it was: weights that no optimizer wrote. The loss bumps at each refit. HEALTHY. Without Rangewatch:
loss 1.1 to 0.001, 0.158 to 0.166 over the refit of step 40."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(527); torch.set_num_threads(1)
K = 3


class KANLayer(nn.Module):
    def __init__(self, i, o, g=5):
        super().__init__()
        self.register_buffer("grid", torch.linspace(-1 - 2 * K / g, 1 + 2 * K / g, g + 2 * K + 1).repeat(i, 1))
        self.base, self.coef = nn.Parameter(torch.randn(o, i) / i ** 0.5), nn.Parameter(torch.randn(o, i, g + K) * 0.05)

    def splines(self, x):
        g, x = self.grid, x.unsqueeze(-1)
        b = ((x >= g[:, :-1]) & (x < g[:, 1:])).float()
        for k in range(1, K + 1):
            left = (x - g[:, : -(k + 1)]) / (g[:, k:-1] - g[:, : -(k + 1)])
            right = (g[:, k + 1:] - x) / (g[:, k + 1:] - g[:, 1:-k])
            b = left * b[..., :-1] + right * b[..., 1:]
        return b

    @torch.no_grad()
    def refit(self, x, g):
        y = torch.einsum("bik,oik->bio", self.splines(x), self.coef)
        low, high = x.min(0).values - 0.05, x.max(0).values + 0.05
        h = (high - low) / g
        self.grid = low[:, None] + torch.arange(-K, g + K + 1) * h[:, None]
        found = torch.linalg.lstsq(self.splines(x).transpose(0, 1), y.transpose(0, 1), driver="gelsd").solution.permute(2, 0, 1)
        self.coef.copy_(found)

    def forward(self, x):
        return F.silu(x) @ self.base.T + torch.einsum("bik,oik->bo", self.splines(x), self.coef)


class KAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = KANLayer(6, 10), KANLayer(10, 1)

    def forward(self, x):
        return self.two(self.one(x))


model = KAN()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x = torch.rand(256, 6) * 2 - 1
    y = torch.sin(3 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] + x[:, 3:4] ** 2
    if step in (40, 80, 120):
        with torch.no_grad():
            middle = model.one(x)
            model.one.refit(x, 5)
            model.two.refit(middle, 5)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (41, 81, 121, 239):
        print(step, loss.item(), flush=True)
handle.detach()
