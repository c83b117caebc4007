"""A convolutional net that reads the ripeness (0 to 10) of a fruit from a spectrum, with a Charbonnier loss written by hand. FAULT at step 0: the net
returns a column (64, 1), the targets are a row (64), and the difference broadcasts to 64 times 64: each forecast is compared with each target, and the
best that the net can do is to forecast the median of all fruits.
Without Rangewatch: loss 4.8 to 2.8 at step 20, then 2.2 to 2.7 to the end, all forecasts within 0.07 of one another (the fruits go from 0 to 10); with
the column squeezed it is 0.14 at the end.
Cause: none of its own need be named (forward_arithmetic or data would do). Step: from 0 on, as soon as the loss is seen to stand. Right: shape /
broadcast / squeeze / constant output. Wrong: GradScaler, mask, NaN."""
EXPECT = {"cause": ["", "forward_arithmetic", "data"], "step": [0, 219], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16", "NaN in the"],
          "right": "shape|broadcast|squeeze|column|same (answer|output|prediction)|constant"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1602); torch.set_num_threads(1)
band = torch.linspace(0, 1, 48)


def spectra(n):
    ripe = 10 * torch.rand(n)
    peak = 0.25 + 0.05 * ripe[:, None]
    x = torch.exp(-((band - peak) / 0.08) ** 2) + 0.5 * torch.exp(-((band - 0.2) / 0.05) ** 2)
    return (x + 0.05 * torch.randn(n, 48))[:, None], ripe


model = nn.Sequential(nn.Conv1d(1, 12, 5, stride=2), nn.GELU(), nn.Conv1d(12, 16, 5, stride=2), nn.GELU(), nn.Flatten(),
                      nn.Linear(144, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, ripe = spectra(64)
    forecast = model(x)
    loss = ((forecast - ripe) ** 2 + 1e-3).sqrt().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        right = ((forecast[:, 0] - ripe) ** 2 + 1e-3).sqrt().mean()
        print(step, loss.item(), "row by row", right.item(), "spread of forecasts", forecast.std().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
