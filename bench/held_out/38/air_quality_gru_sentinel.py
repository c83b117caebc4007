"""A GRU forecasts the next hour's NO2 from 24 hours of four instruments of a street station (RMSprop, Huber loss, float32).
FAULT at step 140: the feed changes to the vendor's new export, where a reading that is missing is -9999 (the old export repeated the last reading). The standardisation (mean 32, spread 14) turns
each of these into some -716 deviations; about 3 % of the readings are so from there on.
Without Rangewatch: Huber loss 0.475 to 0.008 at step 139, 0.089 at step 140 and 0.13 at 141; 0.02 to 0.056 to the end, several times what it was; nothing is NaN.
Cause: data. Step: 140. Right: the inputs / missing values / sentinel. Wrong: lower the learning rate, GradScaler, initialisation."""
EXPECT = {"cause": ["data"], "step": [139, 146], "place": None, "rank": None,
          "right": r"(?i)input|data|missing|sentinel|outlier|batch", "wrong": ["[Ll]ower the learning rate", "GradScaler", "initiali[sz]ation"]}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1406)
torch.set_num_threads(1)
MEAN, SPREAD = 32.0, 14.0


def export(n, new_format):
    hour = torch.randint(0, 24, (n, 1)) + torch.arange(25)[None]
    level = 32 + 14 * torch.sin(2 * math.pi * hour / 24 + 0.4) + 8 * torch.randn(n, 1)
    instruments = torch.stack([level + s * torch.randn(n, 25) for s in (2.0, 4.0, 6.0, 6.0)], 2)
    past, target = instruments[:, :24], level[:, 24]
    if new_format:
        past = torch.where(torch.rand(past.shape) < 0.03, torch.tensor(-9999.0), past)
    return (past - MEAN) / SPREAD, (target - MEAN) / SPREAD


class Station(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(4, 24)
        self.hours = nn.GRU(24, 32, batch_first=True)
        self.forecast = nn.Linear(32, 1)

    def forward(self, x):
        h, _ = self.hours(F.leaky_relu(self.lift(x), 0.1))
        return self.forecast(h[:, -1])[:, 0]


station = Station()
optimizer = torch.optim.RMSprop(station.parameters(), lr=1.5e-3)
handle = rangewatch.attach(station, optimizer)
for step in range(260):
    x, y = export(40, new_format=step >= 140)
    loss = F.huber_loss(station(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (139, 141, 259):
        print(step, f"huber {loss.item():.4f}, spread of y {y.std().item():.2f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
