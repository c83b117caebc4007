"""A net of dilated convolutions forecasts the level at a harbour from eight tide gauges. FAULT at step 110: a NetCDF file is read without its mask, and one
gauge's missing hour holds the format's fill value 9.97e36; the number is finite, its square is not.
Without Rangewatch: loss 0.23 to 0.0030 at step 109, inf at step 110, NaN from step 111 on.
Variant of: observation_of_1e30.
Cause: data. Step: 110. Right: input / batch / fill value / outlier. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [109, 111], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "input|batch|data|outlier|sample|clean|normali[sz]e"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1302); torch.set_num_threads(1)
GAUGES, HOURS = 8, 48
lag, height = torch.rand(GAUGES, 1), 0.5 + torch.rand(GAUGES, 1)


class TideNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.near = nn.Conv1d(GAUGES, 24, 3, padding=1)
        self.wide = nn.Conv1d(24, 24, 3, padding=3, dilation=3)
        self.far = nn.Conv1d(24, 24, 3, padding=9, dilation=9)
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        h = F.gelu(self.near(x))
        h = h + F.gelu(self.wide(h))
        h = h + F.gelu(self.far(h))
        return self.out(h[:, :, -1])[:, 0]


def records(n):
    begin = 100 * torch.rand(n, 1, 1)
    hours = begin + torch.arange(HOURS + 3)
    moon = torch.sin(0.5059 * (hours - 3 * lag)) + 0.4 * torch.sin(0.5236 * (hours + 2 * lag))
    level = height * moon + 0.05 * torch.randn(n, GAUGES, HOURS + 3)
    return level[:, :, :HOURS], level[:, 0, -1]


model = TideNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, y = records(32)
    if step == 110:
        x[5, 2, 40] = 9.969209968386869e36  # NC_FILL_FLOAT
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 108 < step < 113:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
