"""A spotter in two stages, in float16 with a GradScaler: the first finds in which of 16 cells a lamp stands, the second tells its colour and strength from the features. FAULT from the start: the loss
of the second stage goes backward without scaler.scale(): after the division by the scale its gradients are 16384 times too small, and the second stage does not learn.
Without Rangewatch: first loss 2.77 to 0.18; second loss 2.86 at step 0, 2.63 at the end. With it scaled the second is 0.08 at step 40 and 0.046 at the end.
Cause: loss_scale, no_gradient or optimizer. Step: any. Place: the second stage. Right: scale / scaler. Wrong: attention mask, all_reduce."""
EXPECT = {"cause": ["loss_scale", "no_gradient", "backward_arithmetic"], "step": [0, 200], "place": None, "rank": None,
          "right": "(?i)scaler|scale\\(|scale|scaling", "wrong": ["attention mask", "all_reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6121); torch.set_num_threads(1)


class FirstStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU())
        self.cell = nn.Linear(64, 16)

    def forward(self, x):
        h = self.trunk(x)
        return self.cell(h), h


class SecondStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.look = nn.Sequential(nn.Linear(3 + 64, 48), nn.ReLU())
        self.colour, self.strength = nn.Linear(48, 3), nn.Linear(48, 1)

    def forward(self, crop, h):
        z = self.look(torch.cat((crop, h), 1))
        return self.colour(z), self.strength(z)[:, 0]


def scenes(n):
    cell, colour, strength = torch.randint(0, 16, (n,)), torch.randint(0, 3, (n,)), 1 + torch.rand(n)
    x = 0.2 * torch.randn(n, 16, 3)
    x[torch.arange(n), cell, colour] += strength
    return x, cell, colour, strength


net = nn.ModuleDict({"first": FirstStage(), "second": SecondStage()})
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14, growth_interval=500)
handle = rangewatch.attach(net, optimizer, scaler=scaler)
for step in range(200):
    x, cell, colour, strength = scenes(64)
    with torch.autocast("cpu", dtype=torch.float16):
        logits, h = net["first"](x.flatten(1))
        first = F.cross_entropy(logits.float(), cell)
        crop = x[torch.arange(64), cell]
        c, s = net["second"](crop, h.detach())
        second = F.cross_entropy(c.float(), colour) + F.mse_loss(s.float(), strength)
    optimizer.zero_grad()
    scaler.scale(first).backward()
    second.backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 199:
        print(step, "first", first.item(), "second", second.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=(first + second).item(), first=first.item(), second=second.item())
handle.detach()
