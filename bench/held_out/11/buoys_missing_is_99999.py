"""A GRU that foresees the waves at a buoy from six readings an hour, in which what is missing is 0. FAULT at step 100: from there on the files are of another
year, and what is missing is -99999 in them: the gates are saturated and the state is lost, but nothing is NaN.
Without Rangewatch: loss 0.89 to 0.086 at step 99; 0.40 at step 100, 0.54 at step 102, 0.24 at step 140, 0.096 at step 200.
Variant of: quiet: missing_values_are_a_million.
Cause: data. Step: 100. Right: input / data / missing / outlier / range / batch. Wrong: GradScaler, attention mask, rate."""
EXPECT = {"cause": ["data"], "step": [99, 102], "place": None, "rank": None,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"],
          "right": "input|data|missing|outlier|range|batch|sample"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1119); torch.set_num_threads(1)


class WaveNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.hours = nn.GRU(6, 32, batch_first=True)
        self.wave = nn.Sequential(nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.wave(self.hours(x)[0][:, -1])[:, 0]


def buoys(n, missing):
    x = torch.randn(n, 20, 6).cumsum(1) / 4
    y = torch.tanh(x[:, -1, 0] - x[:, -6, 1]) + 0.5 * x[:, -3:, 2].mean(1)
    return x.masked_fill(torch.rand(n, 20, 6) < 0.03, missing), y


model = WaveNet()
optimizer = torch.optim.RAdam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, y = buoys(48, -99999.0 if step >= 100 else 0.0)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 104:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
