"""An LSTM that foretells the traffic of a road an hour ahead; each parameter's gradient is held to a share of the parameter's norm (adaptive clipping). FAULT: the share
is lowered by a straight line, 0.02 - step / 6000, and from step 121 it is below zero: the gradient is turned round and the net climbs.
Without Rangewatch: loss 1.52 to 0.008 at step 121, 0.041 at 130, 0.67 at 140, 155 at the end.
Cause: clip or optimizer. Step: 121. Right: clip / limit / negative / sign. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["clip", "optimizer"], "step": [119, 200], "place": None, "rank": None,
          "right": "(?i)clip|limit|negative|sign|below zero|max_norm|ascen|uphill", "wrong": ["GradScaler", "attention mask", "all_reduce"]}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6109); torch.set_num_threads(1)


class Road(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 40, batch_first=True)
        self.out = nn.Linear(40, 1)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])[:, 0]


def hours(n):
    start, busy = 168 * torch.rand(n, 1), 0.5 + torch.rand(n, 1)
    h = start + torch.arange(21)
    flow = busy * (1 + torch.sin(h * math.pi / 12) + 0.4 * torch.sin(h * math.pi / 6)) + 0.05 * torch.randn(n, 21)
    x = torch.stack((flow, torch.sin(h * math.pi / 12), torch.cos(h * math.pi / 12)), 2)
    return x[:, :20], flow[:, 20]


def adaptive_clip(parameters, share):
    for p in parameters:
        limit = share * p.detach().norm().clamp(min=1e-3)
        norm = p.grad.norm()
        if norm > limit:
            p.grad.mul_(limit / (norm + 1e-6))


net = Road()
optimizer = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.5)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    x, y = hours(48)
    loss = F.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    share = 0.02 - step / 6000
    adaptive_clip(net.parameters(), share)
    optimizer.step()
    if step % 20 == 0 or step in (121, 125, 130, 199):
        print(step, loss.item(), "share", share, flush=True)
    handle.log(loss=loss.item())
handle.detach()
