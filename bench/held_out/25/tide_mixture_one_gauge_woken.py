"""A mixture of six experts with a top-2 gate that foretells tides. FAULT at step 120: someone wants to wake expert 4 and gives its group a rate of
300 rather than 0.015 (SGD); its weights explode and the rows that go through it with them.
Without Rangewatch: loss 0.73 to 0.004 at step 119, 0.006 at step 120, 1.5 at step 121, 1.3e9 at step 122, inf at step 123, NaN after; the largest
weight of expert 4 is 0.147, 172 after step 121, 3e8 after step 122.
Cause: learning_rate. Step: 120. Place: the fourth expert. Right: learning rate of that group. Wrong: GradScaler, attention mask, bfloat16."""
EXPECT = {"cause": ["learning_rate"], "step": [119, 124], "place": "expert\\.4.*", "rank": 0,
          "right": "(?i)learning rate|\\blr\\b", "wrong": ["GradScaler", "attention mask", "bfloat16"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2504); torch.set_num_threads(1)


class Tides(nn.Module):
    def __init__(self, experts=6, width=48):
        super().__init__()
        self.enter = nn.Linear(12, width)
        self.gate = nn.Linear(width, experts)
        self.expert = nn.ModuleList(nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width)) for _ in range(experts))
        self.leave = nn.Linear(width, 1)

    def forward(self, x):
        h = torch.tanh(self.enter(x))
        best, which = self.gate(h).topk(2, 1)
        share = best.softmax(1)
        out = torch.zeros_like(h)
        for i, expert in enumerate(self.expert):
            row, place = torch.nonzero(which == i, as_tuple=True)
            if len(row):
                out = out.index_add(0, row, share[row, place, None] * expert(h[row]))
        return self.leave(h + out)[:, 0]


def hours(n):
    start = 300 * torch.rand(n, 1)
    t = start + torch.arange(18)
    level = torch.sin(0.506 * t) + 0.4 * torch.sin(0.524 * t + 1) + 0.3 * torch.sin(0.262 * t)
    return level[:, :12] + 0.02 * torch.randn(n, 12), level[:, 17]


net = Tides()
one = list(net.expert[4].parameters())
rest = [p for p in net.parameters() if not any(p is q for q in one)]
optimizer = torch.optim.SGD([{"params": rest}, {"params": one}], lr=0.015, momentum=0.9)
handle = rangewatch.attach(net, optimizer)
for step in range(180):
    if step == 120:
        optimizer.param_groups[1]["lr"] = 300.0
    x, y = hours(128)
    loss = F.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 117 < step < 127 or step == 179:
        print(step, loss.item(), "expert 4", net.expert[4][0].weight.abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
