"""A GRU that foretells the dust in the air of a town from 48 hours of four sensors. FAULT at step 71: one sensor was down for two hours, the table has NaN there
(the forward fill was applied to the training months but not to May); one window of the batch carries NaN, the loss and all weights follow.
Without Rangewatch: loss 0.17 to 0.012 at step 70, NaN from step 71 to the end.
Cause: data. Step: 71. Right: NaN in the input / data / fill. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["data"], "step": [70, 72], "place": None, "rank": None,
          "right": "(?i)data|input|batch|fill|missing|nan_to_num|isfinite|sensor", "wrong": ["[Ll]ower the learning rate", "GradScaler", "(?i)log of (0|zero)"]}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(55); torch.set_num_threads(1)
hours = torch.arange(24 * 200.0)
dust = 0.6 * torch.sin(hours * 2 * math.pi / 24) + 0.4 * torch.sin(hours * 2 * math.pi / 168) + 0.1 * torch.randn(len(hours))
sensors = torch.stack((dust, torch.cos(hours * 2 * math.pi / 24), torch.roll(dust, 3) + 0.1 * torch.randn(len(hours)), torch.randn(len(hours))), 1)
sensors[3463:3465, 2] = float("nan")


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(4, 40, num_layers=2, batch_first=True)
        self.out = nn.Linear(40, 3)

    def forward(self, x):
        return self.out(self.gru(x)[0][:, -1])


model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(170):
    last = 60 + 48 * (step % 95)
    ends = torch.randint(last, last + 40, (24,))
    x = torch.stack([sensors[e - 48:e] for e in ends])
    y = torch.stack([dust[e:e + 3] for e in ends])
    loss = ((model(x) - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or 68 < step < 74:
        print(step, loss.item(), torch.isnan(x).any().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
