"""A net that forecasts the yield of a vineyard from 12 measurements, whose first layer is a BatchNorm1d over them. FAULT from step 120 on: a new station
writes 1000000 where it has no humidity (one row in twenty); the variance of the batch is ruined, and the true values of that column become equal.
Without Rangewatch: loss 23 to 0.41 at step 119, 16.4 at step 120, 6.6 to 17.7 to the end (it is never NaN).
Cause: data. Step: 120. Right: input / outlier / missing / data / normalise. Wrong: GradScaler, mask, lower the learning rate."""
EXPECT = {"cause": ["data"], "step": [119, 124], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16", "[Ll]ower the learning rate"],
          "right": "input|outlier|missing|data|sentinel|batch"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1612); torch.set_num_threads(1)
centre, width = 20 * torch.randn(12), 1 + 5 * torch.rand(12)
HUMIDITY = 3
taste = torch.randn(12)
taste[HUMIDITY] = 3.0


def vineyards(n):
    z = torch.randn(n, 12)
    return centre + width * z, (z * taste).sum(1) + z[:, HUMIDITY] * z[:, 0] + 0.1 * torch.randn(n)


class Vine(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.BatchNorm1d(12)
        self.wide, self.deep = nn.Linear(12, 1), nn.Sequential(nn.Linear(12, 48), nn.ELU(), nn.Linear(48, 1))

    def forward(self, x):
        x = self.scale(x)
        return (self.wide(x) + self.deep(x))[:, 0]


model = Vine()
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, harvest = vineyards(80)
    if step >= 120:
        x[torch.randperm(80)[:4], HUMIDITY] = 1e6
    loss = F.mse_loss(model(x), harvest)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 118 < step < 124 or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
