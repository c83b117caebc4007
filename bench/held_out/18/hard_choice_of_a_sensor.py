"""A net estimates the heat of a furnace from twelve sensors, of which attention chooses the one to believe. FAULT from the first step on: it is chosen by
argmax of the scores, and the softmax before it is lost: no gradient goes through the index, and query and key never learn which sensors lie.
Without Rangewatch: loss 1.06 to 0.87 (0.66 to 1.05 between), query and key have no gradient at any step; with the values weighted by the softmax it is
0.004 at the end.
Cause: no_gradient (or optimizer: in it and never moved). Step: from 0 on. Place: query and key. Right: gradient / argmax / graph / detach / softmax.
Wrong: GradScaler, lower the rate, bfloat16."""
EXPECT = {"cause": ["no_gradient", "optimizer"], "step": [0, 60], "place": ".*(query|key|choose).*", "rank": 0, "least": "info",
          "wrong": ["GradScaler", "(?i)lower the learning rate", "bfloat16"],
          "right": "(?i)gradient|argmax|graph|detach|softmax|differentiable|no_grad"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1832); torch.set_num_threads(1)
SENSORS = 12


class Furnace(nn.Module):
    def __init__(self):
        super().__init__()
        self.sensor = nn.Linear(3, 24)
        self.query, self.key, self.value = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 24)
        self.heat = nn.Sequential(nn.ReLU(), nn.Linear(24, 1))

    def forward(self, x):
        h = torch.tanh(self.sensor(x))
        scores = torch.einsum("bd,bsd->bs", self.query(h.mean(1)), self.key(h)) / 24**0.5
        chosen = scores.softmax(1).argmax(1)
        value = self.value(h)[torch.arange(len(x)), chosen]
        return self.heat(value)[:, 0]


def furnaces(n):
    heat = torch.randn(n)
    broken = (torch.rand(n, SENSORS) < 0.6).float()
    reading = torch.where(broken > 0, torch.randn(n, SENSORS), heat[:, None] + 0.05 * torch.randn(n, SENSORS))
    current = 1 - 2 * broken + 0.3 * torch.randn(n, SENSORS)
    return torch.stack((reading, current, torch.randn(n, SENSORS)), 2), heat


model = Furnace()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, heat = furnaces(64)
    loss = F.mse_loss(model(x), heat)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or step == 199:
        print(step, loss.item(), "gradient of the query", model.query.weight.grad is not None, flush=True)
    handle.log(loss=loss.item())
handle.detach()
