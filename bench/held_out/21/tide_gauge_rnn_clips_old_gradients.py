"""A plain tanh recurrent net that forecasts the water level at a tide gauge from twelve hours. FAULT at step 120: clip_grad_norm_ stands between
zero_grad() and backward(), where there is no gradient to clip; it did no harm until a (true) storm surge comes in, whose gradient goes in whole.
Without Rangewatch: loss 0.86 to 0.011 at step 119 (gradient norm 0.15), 46,880 at step 120 (norm 236), 100 at step 121 (norm 1,458), 11,933 at step 124, 3e14 at step
140, NaN from about step 180 on.
Cause: clip (or the surge in the data, or the rate). Step: 120. Right: clip / after the backward / gradient norm. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["clip", "data", "learning_rate"], "step": [119, 124], "place": None, "rank": 0,
          "right": "(?i)clip|gradient norm|explod|outlier|target|batch", "wrong": ["GradScaler", "attention mask", "bfloat16"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2101)
torch.set_num_threads(1)


class Gauge(nn.Module):
    def __init__(self):
        super().__init__()
        self.hours = nn.RNN(3, 48, num_layers=2, batch_first=True)
        self.level = nn.Linear(48, 1)

    def forward(self, x):
        return self.level(self.hours(x)[0][:, -1]).squeeze(1)


def tides(n):
    t0 = torch.rand(n, 1) * 100
    hours = t0 + torch.arange(13.0)
    moon = torch.sin(hours * 0.5059) + 0.4 * torch.sin(hours * 0.2618)
    wind = 0.3 * torch.randn(n, 13).cumsum(1) / 3
    level = moon + wind
    x = torch.stack((level[:, :12], wind[:, :12], torch.cos(hours[:, :12] * 0.2618)), 2)
    return x, level[:, 12]


net = Gauge()
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(net, opt)
for step in range(220):
    x, y = tides(48)
    if step == 120:
        y[5] += 1500.0  # centimetres in a column of metres, in the night of the surge
    loss = (net(x) - y).square().mean()
    opt.zero_grad()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    loss.backward()
    opt.step()
    if step % 20 == 0 or 118 < step < 125 or step == 219:
        norm = sum(p.grad.square().sum() for p in net.parameters()).sqrt()
        print(step, loss.item(), "norm", norm.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
