"""Healthy: a temporal net tells strokes of rowers apart, by SGD with CyclicLR. Odd: the rate goes up and down between 0.005 and 0.12 every 60 steps, and the
momentum against it. Without Rangewatch: loss 1.35 to 0.01."""
EXPECT = {"healthy": True, "cause": [], "step": [0, 0], "place": None, "rank": 0, "wrong": [], "right": ""}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1936); torch.set_num_threads(1)


def strokes(n):
    y = torch.randint(0, 4, (n,))
    t = torch.arange(50) / 50
    pull = torch.sin(6.2832 * (3 * t + torch.rand(n, 1)))
    x = torch.stack((pull.clamp(min=0) ** (1 + y[:, None]), pull.roll(2, 1) * (1 + 0.5 * (y[:, None] % 2)), pull ** 2), 1)
    return x + 0.15 * torch.randn(n, 3, 50), y


model = nn.Sequential(nn.Conv1d(3, 20, 5, padding=2), nn.BatchNorm1d(20), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(20, 32, 5, padding=2), nn.BatchNorm1d(32),
                      nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Dropout(0.1), nn.Linear(128, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
schedule = torch.optim.lr_scheduler.CyclicLR(optimizer, base_lr=0.005, max_lr=0.12, step_size_up=30, cycle_momentum=True)
handle = rangewatch.attach(model, optimizer)
for step in range(210):
    x, y = strokes(40)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 20 == 0 or step == 209:
        print(step, loss.item(), "rate", schedule.get_last_lr()[0], flush=True)
    handle.log(loss=loss.item())
handle.detach()
