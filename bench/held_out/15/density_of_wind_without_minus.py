"""An LSTM that gives a distribution (mean and width) of tomorrow's wind. FAULT from the start: the loss is the mean of log_prob without its minus, so that
the likelihood of what happened is made as small as can be.
Without Rangewatch: loss -1.46 at step 0, -5,181 at step 60, -1.1e10 at step 100, -3.7e20 at the end; the mean error goes from 0.85 to 25.5.
Cause: none need be named (the sign of the loss). Step: any. Right: sign / minus / below zero / unbounded. Wrong: GradScaler, mask, scale the inputs."""
EXPECT = {"cause": ["", "forward_arithmetic", "learning_rate"], "step": [0, 199], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Nn]ormali[sz]e the inputs"],
          "right": "sign|minus|negati|maximi[sz]|below zero|unbounded|wrong direction"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1504); torch.set_num_threads(1)
hour = torch.arange(24) * 6.2832 / 24


class WindDensity(nn.Module):
    """A distribution of tomorrow's wind from the last day's."""
    def __init__(self):
        super().__init__()
        self.day = nn.LSTM(2, 24, batch_first=True)
        self.mean, self.log_width = nn.Linear(24, 1), nn.Linear(24, 1)

    def forward(self, x):
        h = self.day(x)[0][:, -1]
        return torch.distributions.Normal(self.mean(h)[:, 0], self.log_width(h)[:, 0].exp())


def days(n):
    level, swing = torch.randn(n, 1), torch.rand(n, 1)
    wind = level + swing * torch.sin(hour + 0.3 * torch.randn(n, 1)) + 0.1 * torch.randn(n, 24)
    pressure = -0.5 * level + 0.1 * torch.randn(n, 24)
    return torch.stack((wind, pressure), 2), level[:, 0] + 0.3 * swing[:, 0] * torch.randn(n)


model = WindDensity()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = days(48)
    wind = model(x)
    loss = wind.log_prob(y).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "mean width", wind.stddev.mean().item(), "error", (wind.mean - y).abs().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
