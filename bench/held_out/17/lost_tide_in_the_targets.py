"""A net of two stations that forecasts the tide of six harbours from the wind and the moon. FAULT at step 90: one harbour's gauge was out for a day; the
table holds NaN there, in one row of the targets; the mean squared error is NaN, and so are all weights one step later.
Without Rangewatch: loss 0.72 to 0.11 at step 89, NaN from step 90 on.
Cause: data (the targets). Step: 90. Right: target / label / data / batch. Wrong: lower the learning rate, GradScaler, mask of attention."""
EXPECT = {"cause": ["data"], "step": [89, 91], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "target|label|data|batch|loss itself"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1621); torch.set_num_threads(1)
pull = torch.randn(6, 2)


def days(n):
    moon, wind = 6.2832 * torch.rand(n, 1), torch.randn(n, 3)
    rise = torch.cat((moon.sin(), moon.cos()), 1) @ pull.T + 0.3 * wind[:, :1] * wind[:, 1:2] + 0.2 * wind[:, 2:].abs()
    return torch.cat((moon.sin(), moon.cos()), 1), wind, rise


class Tide(nn.Module):
    def __init__(self):
        super().__init__()
        self.moon, self.wind = nn.Linear(2, 32), nn.Sequential(nn.Linear(3, 32), nn.PReLU(), nn.Linear(32, 32))
        self.norm, self.harbours = nn.LayerNorm(32), nn.Linear(32, 6)

    def forward(self, moon, wind):
        return self.harbours(torch.tanh(self.norm(self.moon(moon) + self.wind(wind))))


model = Tide()
optimizer = torch.optim.RAdam(model.parameters(), lr=8e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    moon, wind, rise = days(64)
    if step == 90:
        rise[40, 4] = float("nan")
    loss = (model(moon, wind) - rise).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 88 < step < 92 or step == 179:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
