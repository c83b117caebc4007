"""An LSTM for the output of a solar plant in the next hour. FAULT from the start: the targets are in W, up to 2.4e7; the net begins at 0.16 and a step of
Adam moves it by 0.1.
Without Rangewatch: loss 5.3e13 at step 0 and 5.6e13 at step 199, the largest prediction is 24 by then, the mean target is four to five million.
Cause: data (scale of the targets). Step: 0. Right: target / scale / normalise / unit. Wrong: GradScaler, mask, NaN in the input."""
EXPECT = {"cause": ["data"], "step": [0, 40], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "NaN in the input"],
          "right": "target|scale|normali[sz]|standardi[sz]|log|unit|label"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1514); torch.set_num_threads(1)
hour = torch.arange(24) / 24


class SolarPlant(nn.Module):
    """The output of a solar plant in the next hour, in W, from sun, clouds and temperature of the last day."""
    def __init__(self):
        super().__init__()
        self.day = nn.LSTM(3, 32, batch_first=True)
        self.power = nn.Linear(32, 1)

    def forward(self, x):
        return self.power(self.day(x)[0][:, -1])[:, 0]


def plants(n):
    shift = torch.rand(n, 1)
    sun = torch.relu(torch.sin(6.2832 * (hour + shift)))
    cloud = torch.rand(n, 1) * torch.ones(24) + 0.1 * torch.randn(n, 24)
    warm = torch.randn(n, 1) * torch.ones(24) + 0.1 * torch.randn(n, 24)
    watts = 2.4e7 * sun[:, -1] * (1 - 0.7 * cloud[:, -1]) * (1 - 0.05 * warm[:, -1])
    return torch.stack((sun, cloud, warm), 2), watts


model = SolarPlant()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = plants(64)
    out = model(x)
    loss = F.mse_loss(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "largest prediction", out.abs().max().item(), "mean target", y.mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
