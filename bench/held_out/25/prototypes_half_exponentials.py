"""A classifier of leaf outlines by prototypes: each outline is a mixture of 24 learnt prototypes, its shares are exp(score) over their sum, taken in float16
to save memory; the sharpness of the scores is raised step by step. FAULT near step 100: a score exceeds 11.09, exp of it exceeds 65504, inf over inf is
NaN, as the largest score was not taken off first.
Without Rangewatch: loss 1.61 to 1.08 at step 100, NaN by step 110 and at each step after it.
Cause: forward_arithmetic. Right: take off the largest score / torch.softmax / float32. Wrong: GradScaler, attention mask, lower the learning rate."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [99, 111], "place": None, "rank": 0,
          "right": "(?i)softmax|float16|fp16|half|overflow|65504|largest|maximum|exp", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2503); torch.set_num_threads(1)
angle = torch.arange(64) / 64 * 6.28318


class Shares(nn.Module):
    def forward(self, score):
        e = torch.exp(score.half())
        return (e / e.sum(1, keepdim=True)).float()


class PrototypeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.look = nn.Sequential(nn.Linear(64, 96), nn.SiLU(), nn.Linear(96, 32))
        self.prototype = nn.Parameter(torch.randn(24, 32))
        self.shares = Shares()
        self.name = nn.Linear(32, 5)

    def forward(self, x, sharpness):
        h = F.normalize(self.look(x), dim=1)
        share = self.shares(sharpness * h @ F.normalize(self.prototype, dim=1).T)
        return self.name(share @ self.prototype)


def outlines(n):
    kind = torch.randint(0, 5, (n,))
    lobes = (kind + 2).float()[:, None]
    return 1 + 0.4 * torch.cos(lobes * angle + 6.28 * torch.rand(n, 1)) + 0.1 * torch.randn(n, 64), kind


net = PrototypeNet()
optimizer = torch.optim.Adamax(net.parameters(), lr=1e-2)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    sharpness = 4.0 + 0.1 * step
    x, kind = outlines(64)
    loss = F.cross_entropy(net(x, sharpness), kind)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 or 88 < step < 101 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
