"""A RealNVP flow of two moons' worth of points that are squeezed to a thin line in four dimensions; the loss is the SUM of negative log-likelihoods over 256 points, so it is some thousand at first and far below 0 at the end; the
gradient norm is in the thousands and the clip at 100 cuts every step. SGDR restarts of the rate each 60 steps make the loss jump. HEALTHY.
Without Rangewatch: loss 1403 to -390 with small jumps at steps 60, 120, 180."""
EXPECT = {"healthy": True}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(3332); torch.set_num_threads(1)
turn = torch.linalg.qr(torch.randn(4, 4))[0]


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 4))

    def forward(self, x):
        a, b = x.chunk(2, 1) if not self.flip else x.chunk(2, 1)[::-1]
        s, t = self.net(a).chunk(2, 1)
        s = 2 * torch.tanh(s / 2)
        b = b * s.exp() + t
        return torch.cat([b, a] if self.flip else [a, b], 1), s.sum(1)


class Flow(nn.Module):
    def __init__(self, layers=6):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(k % 2 == 1) for k in range(layers))

    def forward(self, x):
        total = 0
        for layer in self.layers:
            x, logdet = layer(x)
            total = total + logdet
        return total - 0.5 * (x ** 2).sum(1) - 2 * math.log(2 * math.pi)


net = Flow()
optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 60)
handle = rangewatch.attach(net, optimizer)
for step in range(240):
    a = 3.14 * torch.rand(256)
    up = torch.rand(256) < 0.5
    moons = torch.stack([torch.where(up, a.cos(), 1 - a.cos()), torch.where(up, a.sin(), 0.5 - a.sin())], 1)
    x = torch.cat([moons, 0.05 * torch.randn(256, 2)], 1) @ turn
    loss = -net(x).sum()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 100.0)
    optimizer.step()
    scheduler.step()
    if step % 20 == 0 or step in (61, 121, 181, 239):
        print(step, loss.item(), "norm", norm.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
