"""A temporal convolutional net spots keywords. FAULT at step 75: the schedule is read from a file whose line for step 75 has lost its sign: "5e9" for
"5e-9", the end of a decay; SGD takes one step at 5e9 and every weight is gone.
Without Rangewatch: loss 1.96 to 0.015 at step 74, 0.084 at 75, NaN from step 76 on.
Variant of: gpt_with_lr_1e12_at_step_50.
Cause: learning_rate. Step: 75. Right: learning rate. Wrong: GradScaler, attention mask, bfloat16, data."""
EXPECT = {"cause": ["learning_rate"], "step": [74, 78], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "learning rate|\\blr\\b"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1319); torch.set_num_threads(1)
KEYWORDS = 7
spoken = torch.randn(KEYWORDS, 10, 8).repeat_interleave(4, 2)
LINES = "0 5e-2\n40 5e-3\n75 5e9".splitlines()
rates = {int(line.split()[0]): float(line.split()[1]) for line in LINES}


class Tcn(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.into = nn.Conv1d(10, width, 1)
        self.holes = nn.ModuleList(nn.Conv1d(width, width, 3, dilation=2 ** i, padding=2 ** i) for i in range(3))
        self.keyword = nn.Linear(width, KEYWORDS)

    def forward(self, x):
        h = self.into(x)
        for hole in self.holes:
            h = h + F.relu(hole(h))
        return self.keyword(h.mean(2))


def clips(n):
    y = torch.randint(0, KEYWORDS, (n,))
    return spoken[y] + 1.5 * torch.randn(n, 10, 32), y


model = Tcn()
optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    for group in optimizer.param_groups:
        group["lr"] = rates.get(step, group["lr"])
    x, y = clips(24)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 73 < step < 79:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
