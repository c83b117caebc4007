"""A flow that learns the density of twelve measures of turned parts. HEALTHY: the loss is a negative log-likelihood and goes far below zero, since the
measures vary by a few hundredths.
Seen: loss 12.9 at step 0, -9.3 at step 20, -25.5 at step 60, -28.1 at the end."""
EXPECT = {"healthy": True}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(1529); torch.set_num_threads(1)


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip, self.net = flip, nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 12))

    def forward(self, x):
        a, b = x.chunk(2, 1)[::-1] if self.flip else x.chunk(2, 1)
        log_scale, shift = self.net(a).chunk(2, 1)
        log_scale = 2 * torch.tanh(log_scale / 2)
        b = b * log_scale.exp() + shift
        return torch.cat((b, a) if self.flip else (a, b), 1), log_scale.sum(1)


class PartFlow(nn.Module):
    """The density of twelve measures of turned parts, which vary by a few hundredths of a millimetre."""
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(i % 2) for i in range(6))

    def forward(self, x):
        logs = 0.0
        for layer in self.layers:
            x, s = layer(x)
            logs = logs + s
        return -0.5 * (x ** 2).sum(1) - 6 * math.log(6.2832) + logs


mix = torch.randn(4, 12)


def parts(n):
    return 0.03 * torch.randn(n, 4) @ mix + 0.01 * torch.randn(n, 12)


model = PartFlow()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    loss = -model(parts(64)).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 20.0)
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
