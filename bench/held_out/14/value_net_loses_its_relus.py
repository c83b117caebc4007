"""A net learns the value of states of a cart from returns, two layers of ReLU. FAULT at step 100: the rate of a restart is read in percent, 0.02 becomes
2.0, for two steps, and throws the biases of the second layer far below zero. All its units but one are off for good.
Without Rangewatch: loss 15.5 to 0.21 at step 99, 129,000 at step 102, 1.9 at step 120, 0.2 to 0.4 to the end; from 18 units 5 are on at
step 105 and 1 from step 120 on, and the gradient of the first layer is exactly 0.
Variant of: relu_dies (here by a rate that is wrong for two steps, in a regression).
Cause: dead_units (learning_rate or no_gradient would do). Step: 100. Right: ReLU / dead / rate / off. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["dead_units", "learning_rate", "no_gradient"], "step": [99, 150], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Rr]aise the learning rate"],
          "right": "ReLU|relu|dead|off|learning rate|rate|leaky|Leaky"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1408); torch.set_num_threads(1)


class Value(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.value = nn.Linear(4, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, s):
        return self.value(self.second(self.first(s).relu()).relu())[:, 0]


model = Value()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    for group in optimizer.param_groups:
        group["lr"] = 2.0 if step in (100, 101) else 0.02
    s = torch.rand(64, 4)
    y = 3 + 2 * (s[:, 0] - s[:, 1]).abs() + s[:, 2] * s[:, 3] + 0.1 * torch.randn(64)
    loss = F.mse_loss(model(s), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 108:
        with torch.no_grad():
            on = (model.second(model.first(s).relu()) > 0).any(0).sum().item()
        print(step, loss.item(), "units that are on", on, "gradient of first", model.first.weight.grad.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
