"""House prices in crowns (labels of some 2e6, loss of 1e12 at first): the net's output is multiplied by 1e6 inside; the rate runs in cosine cycles of 50 steps down to exactly 0 and up again (Adam), one group (the scale of the prices) has the
rate 0 for good. HEALTHY: the loss is huge but falls, jumps a little after each restart.
Without Rangewatch: loss 5.2e12 to 1.4e10; 5.9e10 at step 100, 2.1e10 at 150, 3.0e10 at 200."""
EXPECT = {"healthy": True}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(136); torch.set_num_threads(1)


class Prices(nn.Module):
    def __init__(self):
        super().__init__()
        self.rooms = nn.Embedding(8, 8)
        self.body = nn.Sequential(nn.Linear(8 + 5, 64), nn.Hardswish(), nn.Linear(64, 64), nn.Hardswish(), nn.Linear(64, 1))
        self.unit = nn.Parameter(torch.tensor(1e6))

    def forward(self, rooms, x):
        return self.body(torch.cat([self.rooms(rooms), x], 1))[:, 0] * self.unit


net = Prices()
rest = [p for n, p in net.named_parameters() if n != "unit"]
optimizer = torch.optim.Adam([{"params": rest, "base": 3e-3}, {"params": [net.unit], "base": 0.0}], lr=3e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(250):
    for group in optimizer.param_groups:
        group["lr"] = group["base"] * 0.5 * (1 + math.cos(math.pi * (step % 50) / 49))
    rooms, x = torch.randint(0, 8, (64,)), torch.randn(64, 5)
    y = 1e6 * (1 + 0.3 * rooms + 0.3 * x[:, 0] + 0.2 * x[:, 1] * x[:, 2])
    loss = F.mse_loss(net(rooms, x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or step == 249:
        print(step, loss.item(), "rate", optimizer.param_groups[0]["lr"], flush=True)
    handle.log(loss=loss.item())
handle.detach()
