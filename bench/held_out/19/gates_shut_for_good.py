"""A gated net (each layer is a sigmoid gate times a tanh) that guesses the age of fish from rings of their ear bones; a penalty on open gates makes it sparse
later. FAULT at step 115: a stage of pruning puts the penalty to 10 where 0.01 was meant; within 20 steps it drives the gates far below zero. From step 135 on
the penalty is gone again, but every sigmoid is shut: nothing passes, and almost no gradient comes back to open it.
Without Rangewatch: loss 0.25 to 0.005 at step 114; the mean gate goes from 0.51 to 8e-8 at step 134; loss 0.22 to 0.38 (the variance of the ages) from step
135 to the end.
Cause: regularization (the penalty), dead_units or no_gradient (the shut sigmoid). Step: 115 to 140. Right: sigmoid / saturated / gate / penalty. Wrong:
GradScaler, mask."""
EXPECT = {"cause": ["regularization", "dead_units", "no_gradient", "forward_arithmetic"], "step": [114, 150], "place": None, "rank": 0,
          "wrong": ["GradScaler", "(?i)attention mask", "(?i)bfloat16"],
          "right": "(?i)sigmoid|saturat|gate|penalty|regulari|clos"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1908); torch.set_num_threads(1)


class Gated(nn.Module):
    def __init__(self, width=32, depth=2):
        super().__init__()
        self.entry = nn.Linear(18, width)
        self.change = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.gate = nn.ModuleList(nn.Linear(18, width) for _ in range(depth))
        self.age = nn.Linear(width, 1)

    def forward(self, x):
        h, opened = torch.tanh(self.entry(x)), []
        for change, gate in zip(self.change, self.gate, strict=True):
            opened.append(torch.sigmoid(gate(x)))
            h = opened[-1] * torch.tanh(change(h))
        return self.age(h)[:, 0], torch.cat(opened, 1)


def rings(n):
    years = 1 + 9 * torch.rand(n, 1)
    width = torch.exp(-torch.arange(18) / (1 + years)) + 0.05 * torch.randn(n, 18)
    return width, years[:, 0] / 5 - 1


model = Gated()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(230):
    x, y = rings(40)
    guess, opened = model(x)
    loss = F.mse_loss(guess, y) + (10.0 if 115 <= step < 135 else 0.0) * opened.sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 113 < step < 118 or step in (134, 135) or step == 229:
        print(step, loss.item(), "mean of the gates", opened.mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
