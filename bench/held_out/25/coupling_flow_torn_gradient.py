"""A normalizing flow of affine couplings for a density of two moons. FAULT at step 130: between backward and the step, a buffer of the gradient of one
weight (the shift of coupling 3, its second layer) is overwritten: seven of its values are NaN. Only that weight is spoiled at first, then all.
Without Rangewatch: loss 2.2 to 0.90 at step 129, 1.04 at step 130, NaN from step 131 on.
Cause: backward_arithmetic or hardware. Step: 130. Place: coupling 3, shift. Right: the gradient of that parameter (skip the step, look at its backward).
Wrong: learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["backward_arithmetic", "hardware"], "step": [129, 131], "place": "coupling\\.3\\.shift.*", "rank": 0,
          "right": "(?i)gradient|backward|grad|hardware|memory", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(2506); torch.set_num_threads(1)


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.scale = nn.Sequential(nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 1), nn.Tanh())
        self.shift = nn.Sequential(nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))

    def forward(self, x):
        a, b = x.chunk(2, 1)
        if self.flip:
            a, b = b, a
        s = self.scale(a)
        b = b * s.exp() + self.shift(a)
        return torch.cat((b, a) if self.flip else (a, b), 1), s[:, 0]


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.coupling = nn.ModuleList(Coupling(i % 2 == 1) for i in range(6))

    def forward(self, x):
        total = 0.0
        for layer in self.coupling:
            x, s = layer(x)
            total = total + s
        return -0.5 * (x ** 2).sum(1) - math.log(2 * math.pi) + total


def moons(n):
    t, side = math.pi * torch.rand(n), (torch.rand(n) < 0.5).float()
    x = torch.stack((torch.cos(t) * (1 - 2 * side) + side, torch.sin(t) * (1 - 2 * side) + 0.5 * side), 1)
    return x + 0.06 * torch.randn(n, 2)


flow = Flow()
optimizer = torch.optim.Adam(flow.parameters(), lr=5e-3)
handle = rangewatch.attach(flow, optimizer)
for step in range(180):
    loss = -flow(moons(256)).mean()
    optimizer.zero_grad()
    loss.backward()
    if step == 130:
        flow.coupling[3].shift[2].weight.grad.view(-1)[700:707] = float("nan")
    optimizer.step()
    if step % 20 == 0 or 128 < step < 133 or step == 179:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
