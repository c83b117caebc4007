"""An echo-state network: a fixed random reservoir (spectral radius 0.95, never trained, requires_grad False; 99 % of all weights) and a small readout on top that learns to forecast a Mackey-Glass-like series (Rprop).
HEALTHY: nearly all of the model stands still by design, its tanh units are partly near 1, and only `readout` moves.
Without Rangewatch: mse 0.064 to 0.0046 at step 199 (the target's variance is 0.054)."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(5122)
torch.set_num_threads(1)
series = [1.2 + 0.1 * torch.rand(()).item() for _ in range(18)]
for _ in range(900):
    late = series[-18]
    series.append(series[-1] + 0.2 * late / (1 + late ** 10) - 0.1 * series[-1])
series = torch.tensor(series[18:]) - 0.9


class Reservoir(nn.Module):
    def __init__(self, n=150):
        super().__init__()
        w = torch.randn(n, n) * (torch.rand(n, n) < 0.1)
        w *= 0.95 / torch.linalg.eigvals(w).abs().max()
        self.inside = nn.Parameter(w, requires_grad=False)
        self.feed = nn.Parameter(2 * torch.rand(n, 1) - 1, requires_grad=False)

    def forward(self, u):
        h = u.new_zeros(u.shape[0], self.inside.shape[0])
        for k in range(u.shape[1]):
            h = torch.tanh(h @ self.inside.T + u[:, k:k + 1] @ self.feed.T)
        return h


class EchoState(nn.Module):
    def __init__(self):
        super().__init__()
        self.reservoir = Reservoir()
        self.readout = nn.Linear(150, 1)

    def forward(self, u):
        return self.readout(self.reservoir(u))[:, 0]


echo = EchoState()
begin = torch.arange(0, 840, 6)
windows = torch.stack([series[b:b + 40] for b in begin])
target = series[begin + 46]
opt = torch.optim.Rprop(echo.readout.parameters(), lr=1e-3)
handle = rangewatch.attach(echo, opt)
for step in range(200):
    loss = (echo(windows) - target).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or step == 199:
        print(step, "mse", f"{loss.item():.3g}", "variance of the target", f"{target.var().item():.3g}", flush=True)
handle.detach()
