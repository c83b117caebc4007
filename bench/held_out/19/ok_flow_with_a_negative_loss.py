"""Healthy: a flow of affine couplings learns the density of points on a narrow ring. Odd: the loss (negative log likelihood) falls through zero and is
negative at the end, and the last layer of each coupling begins at zero. Without Rangewatch: loss 1.88 to -4.4 (the entropy of the ring's points is about
-4.36)."""
EXPECT = {"healthy": True, "cause": [], "step": [0, 0], "place": None, "rank": 0, "wrong": [], "right": ""}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1934); torch.set_num_threads(1)


class Coupling(nn.Module):
    def __init__(self, turned):
        super().__init__()
        self.turned = turned
        self.net = nn.Sequential(nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 2))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        kept, moved = x.flip(1).chunk(2, 1) if self.turned else x.chunk(2, 1)
        scale, shift = self.net(kept).chunk(2, 1)
        scale = 2 * torch.tanh(scale)
        y = torch.cat((kept, moved * scale.exp() + shift), 1)
        return (y.flip(1) if self.turned else y), scale.sum(1)


flow = nn.ModuleList(Coupling(i % 2 == 1) for i in range(6))
optimizer = torch.optim.Adam(flow.parameters(), lr=3e-3)
handle = rangewatch.attach(flow, optimizer)
for step in range(240):
    angle = 0.25 * torch.randn(128)
    x = 0.3 * torch.stack((angle.cos(), angle.sin()), 1) + 0.01 * torch.randn(128, 2)
    z, volume = x, 0.0
    for coupling in flow:
        z, change = coupling(z)
        volume = volume + change
    loss = (0.5 * z.square().sum(1) + 1.8379 - volume).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
