"""An LSTM forecasts the tide one hour ahead from 24 hours (AdamW with two groups, with and without decay). FAULT at step 110: `PolynomialLR(total_iters=110)`; 110 was meant as epochs, but the scheduler steps in every batch.
From step 110 on the rate of both groups is exactly 0 and the weights stand still for the remaining 240 steps.
Without Rangewatch: mse 0.96 to about 0.75 at step 110, then 0.65 to 0.89 to the end with not one weight moving (with total_iters=3000: 0.005 at step 349).
Cause: learning_rate / frozen. Step: 110 (falls to 0 there). Right: the schedule has brought the rate to 0 / ends too early, total_iters. Wrong: clip, GradScaler, lower the learning rate."""
EXPECT = {"cause": ["learning_rate", "frozen"], "step": [100, 230], "place": None, "rank": None,
          "right": "(?i)schedul|rate.*(0|zero)|total_iters|lr", "wrong": ["[Ll]ower the learning rate", "GradScaler", "clip_grad_norm"]}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(5103)
torch.set_num_threads(1)


def tide(n):
    start = 5000 * torch.rand(n, 1)
    h = start + torch.arange(25.0)
    level = 1.2 * torch.sin(2 * math.pi * h / 12.42) + 0.5 * torch.sin(2 * math.pi * h / 12.0) + 0.3 * torch.sin(2 * math.pi * h / 25.8)
    return level[:, :-1, None], level[:, -1:]


class Tide(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = nn.LSTM(1, 32, batch_first=True)
        self.level = nn.Linear(32, 1)

    def forward(self, x):
        return self.level(self.memory(x)[0][:, -1])


net = Tide()
groups = [{"params": [p for p in net.parameters() if p.ndim > 1], "weight_decay": 1e-3},
          {"params": [p for p in net.parameters() if p.ndim < 2], "weight_decay": 0.0}]
opt = torch.optim.AdamW(groups, lr=1e-3)
schedule = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=110, power=2.0)
handle = rangewatch.attach(net, opt)
for step in range(350):
    before = net.level.weight.detach().clone()
    x, y = tide(64)
    loss = (net(x) - y).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    schedule.step()
    handle.log(loss=loss.item())
    if step % 35 == 0 or step in (109, 110, 349):
        print(step, "mse", round(loss.item(), 4), "level moved by", (net.level.weight - before).norm().item(), flush=True)
handle.detach()
