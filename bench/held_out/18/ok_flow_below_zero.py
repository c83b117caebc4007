"""HEALTHY. A normalising flow of coupling layers learns the density of the stations of a pendulum; its loss is a negative log likelihood of a continuous
quantity, so that it goes through zero and on to minus some, which is well.
Without Rangewatch: loss 2.03, 0.11 at step 40, -0.08 at step 60, -2.07 at the end."""
EXPECT = {"healthy": True}
import math

import torch
from torch import nn
import rangewatch

torch.manual_seed(1834); torch.set_num_threads(1)


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 2))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x.flip(1).split(1, 1) if self.flip else x.split(1, 1)
        scale, shift = self.net(a).split(1, 1)
        scale = 2 * torch.tanh(scale)
        return torch.cat((a, b * scale.exp() + shift), 1), scale[:, 0]


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(i % 2 == 1) for i in range(6))

    def forward(self, x):
        total = torch.zeros(len(x))
        for layer in self.layers:
            x, log_scale = layer(x)
            total = total + log_scale
        return -0.5 * x.square().sum(1) - math.log(2 * math.pi) + total


def pendulum(n):
    angle = 0.9 * torch.sin(6.2832 * torch.rand(n))
    return torch.stack((angle.sin(), 1 - angle.cos()), 1) + 0.01 * torch.randn(n, 2)


model = Flow()
optimizer = torch.optim.Adamax(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    loss = -model(pendulum(256)).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
