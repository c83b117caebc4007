"""Metric learning: a trunk with a bottleneck and a projection learn vectors of 30 "people" with a triplet loss (RAdam, two groups). FAULT at step 0: the trunk's rate is written as `LR * (1 // 10)`, an integer division: 0. Only the projection learns.
Without Rangewatch: triplet loss 0.19 to 0.11, 17 % of the triplets wrong at step 219, the trunk has moved by exactly 0 (with 1 / 10: loss 0.048, 5 % wrong).
Cause: learning_rate (of a group) / frozen. Step: from 0. Right: the group of `trunk` has rate 0. Wrong: lower the learning rate, GradScaler, dead ReLU."""
EXPECT = {"cause": ["learning_rate", "frozen"], "step": [0, 150], "place": r"(.*\.)?trunk.*", "rank": None,
          "right": "(?i)group|rate|lr|trunk", "wrong": ["[Ll]ower the learning rate", "GradScaler", "[Dd]ead ReLU|dying"]}
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(5106)
torch.set_num_threads(1)
LR = 0.01
identity = torch.randn(30, 6)
twist1, twist2 = torch.randn(6, 40), torch.randn(40, 50) / 4


def shots(who):
    z = identity[who] + 0.1 * torch.randn(len(who), 6)
    light = 1.5 * torch.randn(len(who), 1)
    return torch.sin(2 * z @ twist1) @ twist2 + light


def triplets(n):
    a = torch.randint(0, 30, (n,))
    other = (a + torch.randint(1, 30, (n,))) % 30
    return shots(a), shots(a), shots(other)


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(50, 48), nn.Tanh(), nn.Linear(48, 5), nn.Tanh())
        self.project = nn.Linear(5, 4)

    def forward(self, x):
        return F.normalize(self.project(self.trunk(x)), dim=1)


net = Embedder()
opt = torch.optim.RAdam([{"params": net.trunk.parameters(), "lr": LR * (1 // 10)},
                         {"params": net.project.parameters(), "lr": LR}])
handle = rangewatch.attach(net, opt)
start = [p.detach().clone() for p in net.trunk.parameters()]
for step in range(220):
    a, p, n = (net(x) for x in triplets(96))
    gap = (a - p).square().sum(1) - (a - n).square().sum(1)
    loss = F.relu(gap + 0.3).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    handle.log(loss=loss.item())
    if step % 40 == 0 or step == 219:
        moved = sum((q - s).norm().item() for q, s in zip(net.trunk.parameters(), start))
        print(step, "triplet", round(loss.item(), 4), "wrong", round((gap > 0).float().mean().item(), 3), "trunk moved", moved, flush=True)
handle.detach()
