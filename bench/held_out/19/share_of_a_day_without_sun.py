"""A net that foretells the use of a heat store from hourly sun, given as shares of the day's sum. FAULT at step 118: the winter months come, with days on
which no sun was measured at all; the share is 0 / 0, NaN, and so are the loss and after the step every weight.
Without Rangewatch: loss 0.23 to 0.006 at step 117, NaN from step 118 to the end.
Cause: forward_arithmetic (the division) or data or eps. Step: 118. Right: division by zero / clamp / eps / input. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["forward_arithmetic", "data", "eps"], "step": [117, 119], "place": None, "rank": 0,
          "wrong": ["(?i)lower the learning rate", "GradScaler", "(?i)attention mask"],
          "right": "(?i)divi|zero|clamp|eps|input|0 ?/ ?0|data"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1917); torch.set_num_threads(1)


class Store(nn.Module):
    def __init__(self):
        super().__init__()
        self.day = nn.Conv1d(1, 12, 5, padding=2)
        self.use = nn.Sequential(nn.Linear(12 * 6, 32), nn.Mish(), nn.Linear(32, 1))

    def forward(self, sun):
        share = sun / sun.sum(1, keepdim=True)
        h = F.mish(self.day(24 * share[:, None]))
        return self.use(F.avg_pool1d(h, 4).flatten(1))[:, 0]


def days(n, winter):
    hour = torch.arange(24.0)
    noon, length = 11 + 3 * torch.rand(n, 1), 3 + 3 * torch.rand(n, 1)
    sun = (1 - ((hour - noon) / length) ** 2).clamp(min=0) * (0.3 + torch.rand(n, 24))
    if winter:
        sun[torch.rand(n) < 0.1] = 0.0
    return sun, (noon[:, 0] - 12.5) * 0.6 + 0.4 * (length[:, 0] - 4.5)


model = Store()
optimizer = torch.optim.Adamax(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    sun, use = days(32, winter=step >= 118)
    loss = F.smooth_l1_loss(model(sun), use)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 116 < step < 121 or step == 179:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
