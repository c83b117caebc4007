"""A net that foretells the power of a wind farm and its variance, trained by the Gaussian likelihood. FAULT at step 37: the variance is the bare output of a linear layer, where
the wind is calm it is drawn to about 0 and falls below: the log of a negative value is NaN.
Without Rangewatch: loss 0.79 to 0.17 at step 20; NaN at step 37 (least variance -0.004), the first of 2 steps of NaN; the gradient of the log stays finite, so the
weights live on, but the loss is 0.05 at the end where -0.44 had been reached at step 120.
Cause: forward_arithmetic, eps or data. Step: 37. Right: log / softplus / negative / clamp. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["forward_arithmetic", "eps", "learning_rate"], "step": [34, 45], "place": None, "rank": None,
          "right": "(?i)\\blog|softplus|negativ|clamp|exp|positiv|domain|eps", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3016); torch.set_num_threads(1)


class Farm(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 48), nn.Softplus(), nn.Linear(48, 48), nn.Softplus())
        self.power = nn.Linear(48, 1)
        self.variance = nn.Linear(48, 1)
        nn.init.zeros_(self.variance.weight)
        nn.init.ones_(self.variance.bias)

    def forward(self, x):
        h = self.body(x)
        return self.power(h), self.variance(h)


def weather(n):
    x = torch.randn(n, 5)
    speed = (x[:, :1] + 1).clamp(0, 4)
    y = 0.3 * speed ** 2 * (1 + 0.2 * torch.sin(x[:, 1:2])) + (0.02 + 0.2 * speed) * torch.randn(n, 1)
    return x, y


net = Farm()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
bad = 0
for step in range(240):
    x, y = weather(128)
    mean, variance = net(x)
    loss = 0.5 * (torch.log(variance) + (y - mean) ** 2 / variance).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239 or (loss.isnan() and bad == 0):
        print(step, loss.item(), "least variance", variance.min().item(), "NaN so far", bad, flush=True)
    bad += int(loss.isnan())
    handle.log(loss=loss.item())
handle.detach()
