"""Beacons whose places in metres are learnt from measured distances, with a small net for the delay of each receiver. The places count from a far origin (5
million metres). FAULT from the start: in float32 neighbours are half a metre apart there; Adam's step of 0.05 m is rounded away: no beacon ever moves.
Without Rangewatch: loss 8.0 to 4.0 at step 20 (the net for the delay), 3.3 to 3.9 from step 60 to the end; 0 of the 600 coordinates have moved by
step 199.
Cause: optimizer (updates lost to rounding). Step: any. Place: the beacons. Right: float64 / rounding / precision / offset. Wrong: lower the rate, mask."""
EXPECT = {"cause": ["optimizer"], "step": [0, 200], "place": "beacons.*", "rank": 0,
          "right": "(?i)float64|double|round|precision|float32|offset|update|master|Kahan",
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2528); torch.set_num_threads(1)
COUNT = 300
ORIGIN = torch.tensor([5_200_000.0, 4_800_000.0])
true = 20 * torch.randn(COUNT, 2)


class Survey(nn.Module):
    def __init__(self):
        super().__init__()
        self.beacons = nn.Parameter(ORIGIN + (true + 2 * torch.randn(COUNT, 2)))
        self.delay = nn.Sequential(nn.Linear(2, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 1))

    def forward(self, which, receiver):
        d = (self.beacons[which] - ORIGIN) - receiver
        return (d ** 2).sum(1).add(1e-6).sqrt() + self.delay(receiver / 100)[:, 0]


net = Survey()
start = net.beacons.detach().clone()
optimizer = torch.optim.Adam([{"params": [net.beacons], "lr": 0.05}, {"params": net.delay.parameters()}], lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    which = torch.randint(0, COUNT, (512,))
    receiver = 100 * torch.randn(512, 2)
    measured = (true[which] - receiver).norm(dim=1) + 3 * torch.tanh(receiver[:, 0] / 100)
    loss = ((net(which, receiver) - measured) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "moved", (net.beacons != start).sum().item(), "of", 2 * COUNT, flush=True)
    handle.log(loss=loss.item())
handle.detach()
