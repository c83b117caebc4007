"""A normalizing flow of coupling layers learns a narrow arc in the plane; its loss is minus the mean log density, which is above 0 at first and rightly
falls below 0, as densities may exceed 1. HEALTHY.
Without Rangewatch: loss 3.30 at step 0, -1.95 at 20, -2.45 at 60, about -2.3 to -2.6 from there on."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1344); torch.set_num_threads(1)


class Coupling(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.first = first
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, x):
        keep, move = (x[:, :1], x[:, 1:]) if self.first else (x[:, 1:], x[:, :1])
        log_scale, shift = self.net(keep).chunk(2, 1)
        log_scale = 2 * torch.tanh(log_scale)
        move = move * log_scale.exp() + shift
        return torch.cat((keep, move) if self.first else (move, keep), 1), log_scale[:, 0]


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.couplings = nn.ModuleList(Coupling(i % 2 == 0) for i in range(6))

    def forward(self, x):
        log_density = 0.0
        for each in self.couplings:
            x, log_scale = each(x)
            log_density = log_density + log_scale
        return log_density - 0.5 * (x ** 2).sum(1) - 1.8379


def arc(n):
    angle = 1.5 * torch.rand(n)
    radius = 0.5 + 0.02 * torch.randn(n)
    return torch.stack((radius * angle.cos(), radius * angle.sin()), 1)


model = Flow()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    loss = -model(arc(128)).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
