"""An LSTM forecasts a town's electric load. FAULT at step 90: the rate of RMSprop becomes 3 (0.002 before): nothing is NaN, the loss is a thousand times
what it was within 40 steps.
Without Rangewatch: loss 0.66 to 0.021 at step 89, 41 at 91, 7,068 at 92, 5,845 at 100, 3.9 at the end.
Variant of: loss_rises_a_thousandfold_within_50_steps.
Cause: learning_rate. Step: 90. Right: learning rate. Wrong: GradScaler, attention mask, bfloat16."""
EXPECT = {"cause": ["learning_rate"], "step": [89, 130], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "learning rate|\\blr\\b"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1320); torch.set_num_threads(1)


class LoadNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 32, batch_first=True)
        self.load = nn.Linear(32, 1)

    def forward(self, x):
        return self.load(self.lstm(x)[0][:, -1])[:, 0]


def days(n):
    hour = 24 * torch.rand(n, 1) + torch.arange(25)
    warm = torch.randn(n, 1) + 0.1 * torch.randn(n, 25)
    load = torch.sin(hour * 6.2832 / 24) - 0.5 * warm + 0.3 * torch.sin(hour * 6.2832 / 12) + 0.1 * torch.randn(n, 25)
    return torch.stack((torch.sin(hour * 6.2832 / 24), warm, load), 2)[:, :24], load[:, 24]


model = LoadNet()
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.002)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    if step == 90:
        optimizer.param_groups[0]["lr"] = 3.0
    x, y = days(32)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (89, 91, 92, 95, 110, 130, 219):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
