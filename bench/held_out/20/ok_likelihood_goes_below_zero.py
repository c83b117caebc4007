"""HEALTHY: a normalising flow of coupling layers for the places of trees along a river bend; its loss is the negative log likelihood of a narrow density and
goes below zero, which is right for a density.
Without Rangewatch: loss 2.1, -0.35 at step 60, -1.29 at the end.
Right: nothing above info."""
EXPECT = {"healthy": True}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(2033); torch.set_num_threads(1)


class Coupling(nn.Module):
    def __init__(self, swap):
        super().__init__()
        self.swap = swap
        self.net = nn.Sequential(nn.Linear(1, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 2))
        nn.init.zeros_(self.net[4].weight)
        nn.init.zeros_(self.net[4].bias)

    def forward(self, x):
        a, b = x.chunk(2, 1) if not self.swap else x.flip(1).chunk(2, 1)
        s, t = self.net(a).chunk(2, 1)
        s = 2 * torch.tanh(s)
        b = b * s.exp() + t
        return torch.cat((a, b) if not self.swap else (b, a), 1), s[:, 0]


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList(Coupling(k % 2 == 1) for k in range(6))

    def forward(self, x):
        total = x.new_zeros(len(x))
        for step in self.steps:
            x, s = step(x)
            total = total + s
        return -(-0.5 * x.square().sum(1) - math.log(2 * math.pi) + total).mean()


def trees(n):
    along = 2 * torch.rand(n, 1) - 1
    return torch.cat((along, 0.6 * torch.sin(2.5 * along) + 0.03 * torch.randn(n, 1)), 1)


model = Flow()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    loss = model(trees(128))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
