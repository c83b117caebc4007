"""A feature-gated MLP predicts a boiler's output from twelve sensors, standardised by the mean and deviation of good months (log-cosh loss, Adam). FAULT at step 135: the loader reaches months in which two
sensors fail now and then; the logger writes -9999 for "missing" and nobody takes it out: after the standardising these entries are near -700 deviations.
Without Rangewatch: loss 0.62 to 0.03 at step 134; 8.8 at step 135, 11 at 136 and between 0.6 and 1.4 to the end.
Cause: data. Step: 135. Right: input / missing / deviation / outlier. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [134, 139], "place": None, "rank": None,
          "right": "(?i)input|data|batch|missing|deviation|outlier|preproc|standard|normali", "wrong": ["GradScaler", "attention mask"]}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3322); torch.set_num_threads(1)
SENSORS = 12
level, spread = 40 + 20 * torch.rand(SENSORS), 14 + torch.rand(SENSORS)
w, v = torch.randn(SENSORS) / 3, torch.randn(SENSORS) / 3


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.value = nn.Linear(SENSORS, 48), nn.Linear(SENSORS, 48)
        self.hidden, self.out = nn.Linear(48, 48), nn.Linear(48, 1)

    def forward(self, x):
        h = torch.sigmoid(self.gate(x)) * self.value(x)
        return self.out(h + F.gelu(self.hidden(h))).squeeze(-1)


def month(n, failing):
    z = torch.randn(n, SENSORS)
    raw, y = level + spread * z, z @ w + torch.sin(z @ v)
    if failing:
        gone = torch.rand(n, 2) < 0.06
        raw[:, 3:5] = torch.where(gone, torch.full((), -9999.0), raw[:, 3:5])
    return raw, y


def log_cosh(d):
    return (d + F.softplus(-2 * d) - math.log(2)).mean()


good = month(2000, False)[0]
mean, deviation = good.mean(0), good.std(0)
net = Gated()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(210):
    raw, y = month(48, step >= 135)
    x = (raw - mean) / deviation
    loss = log_cosh(net(x) - y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 133 < step < 139 or step == 209:
        print(step, loss.item(), "lowest input", x.min().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
