"""A coupling flow learns the density of orbit elements that lie close to a curve (Adam, warm-up of 20 steps). HEALTHY: the loss is a negative log density, begins
at 6, passes 0 near step 50 and goes on below it; the log-determinants grow to 13.
Without Rangewatch: loss 6.03 to -5.3; -1.4 at step 60, -4.2 at step 120."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2740); torch.set_num_threads(1)


def orbits(n):
    a = torch.randn(n, 1)
    rest = torch.cat((torch.sin(a), 0.5 * a ** 2, torch.cos(2 * a), 0.3 * a), 1)
    return torch.cat((a, rest + 0.01 * torch.randn(n, 4)), 1)


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(2 if flip else 3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2 * (3 if flip else 2)))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        kept, moved = (x[:, 3:], x[:, :3]) if self.flip else (x[:, :3], x[:, 3:])
        log_s, shift = self.net(kept).chunk(2, 1)
        log_s = 4 * torch.tanh(log_s / 4)
        moved = moved * log_s.exp() + shift
        return torch.cat((moved, kept) if self.flip else (kept, moved), 1), log_s.sum(1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(Coupling(k % 2 == 1) for k in range(4))

    def forward(self, x):
        total = 0.0
        for part in self.parts:
            x, d = part(x)
            total = total + d
        return (0.5 * x.pow(2) + 0.919).sum(1) - total, total


net = Flow()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=20)
handle = rangewatch.attach(net, optimizer)
for step in range(240):
    nll, logdet = net(orbits(128))
    loss = nll.mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 20.0)
    optimizer.step()
    warm.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "log-determinant", logdet.max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
