"""A net that says whether there is fog at a station. FAULT from the start: its inputs are as measured: pressure in Pa (101,325), temperatures in K,
height and visibility in m; nothing is standardised.
Without Rangewatch: loss 5,569 at step 0, 1.7e10 at step 1, 41,106 at step 2, from step 5 on 0.68 to 0.71 (chance): the first steps killed the units.
Cause: data (scale of the inputs). Step: 0. Right: scale / normalise / standardise the input. Wrong: GradScaler, mask, NaN in the input."""
EXPECT = {"cause": ["data"], "step": [0, 30], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "NaN in the input"],
          "right": "scale|normali[sz]|standardi[sz]|input|range|data"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1505); torch.set_num_threads(1)


class FogNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.net(x)[:, 0]


def stations(n):
    """Pressure in Pa, temperature and dew point in K, height in m, visibility at the neighbour in m."""
    t = 278 + 8 * torch.randn(n)
    spread = 4 * torch.rand(n)
    wind_free = torch.rand(n)
    pressure = 101325 + 900 * torch.randn(n) + 500 * wind_free
    height = 600 * torch.rand(n)
    visibility = 12000 * torch.rand(n)
    fog = (2.0 - spread + 1.5 * wind_free - visibility / 8000 + 0.3 * torch.randn(n) > 0.3).float()
    return torch.stack((pressure, t, t - spread, height, visibility), 1), fog


model = FogNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = stations(64)
    logit = model(x)
    loss = F.binary_cross_entropy_with_logits(logit, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step < 6 or step == 199:
        print(step, loss.item(), "right", ((logit > 0).float() == y).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
