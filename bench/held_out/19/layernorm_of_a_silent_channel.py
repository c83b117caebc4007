"""A net that reads steps from the sensors of a walking aid; each channel goes through a LayerNorm over time, with eps=0 ("the paper has none"). FAULT at
step 134: a patient wears no left sensor, so that this channel is constant; its variance is 0, the LayerNorm divides 0 by 0, and all is NaN.
Without Rangewatch: loss 1.06 to 0.008 at step 133, NaN from step 134 to the end.
Cause: eps, forward_arithmetic or data. Step: 134. Right: eps / LayerNorm / variance / constant. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["eps", "forward_arithmetic", "data"], "step": [133, 135], "place": None, "rank": 0,
          "wrong": ["(?i)lower the learning rate", "GradScaler", "(?i)attention mask"],
          "right": "(?i)eps|layer ?norm|varian|constant|divi|input|zero"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1926); torch.set_num_threads(1)
LENGTH = 48


class Walk(nn.Module):
    def __init__(self):
        super().__init__()
        self.even = nn.LayerNorm(LENGTH, eps=0.0)
        self.move = nn.Sequential(nn.Conv1d(4, 20, 7, padding=3), nn.SiLU(), nn.Conv1d(20, 20, 7, stride=3), nn.SiLU())
        self.pace = nn.Linear(20 * 14, 1)

    def forward(self, x):
        return self.pace(self.move(self.even(x)).flatten(1))[:, 0]


def walks(n):
    pace = 2 + 4 * torch.rand(n, 1, 1)
    t = torch.arange(LENGTH) / LENGTH
    gain = torch.exp(torch.randn(n, 4, 1))
    x = gain * (torch.sin(6.2832 * (pace * t + torch.rand(n, 1, 1) + torch.arange(4).reshape(4, 1) / 4)) + 0.2 * torch.randn(n, 4, LENGTH)) + 2.0
    return x, pace[:, 0, 0] - 4


model = Walk()
optimizer = torch.optim.RAdam(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(190):
    x, pace = walks(32)
    if step == 134:
        x[7, 1] = 2.0
    loss = F.mse_loss(model(x), pace)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 132 < step < 137 or step == 189:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
