"""A causal convnet forecasts a river's level from four gauges (SGD with Nesterov momentum). FAULT in step 140: one gauge was down for one hour and the exporter has left its "no data" marker, 3.4028e38, in one cell of one row of the batch.
The forward pass just stays finite, but its gradients throw the weights far off (huge, still finite), and the next forward pass gives NaN.
Without Rangewatch: mae 0.44 to 0.16 at step 139; 7.5e34 at step 140, no parameter is NaN or inf yet after it; loss NaN from step 141 on, four of nine parameters not finite after 141, eight later.
Cause: data. Step: 140. Right: the input holds a value of 3.4e38, filter the marker / mask the missing hours. Wrong: lower the learning rate, GradScaler, checkpoint."""
EXPECT = {"cause": ["data"], "step": [140, 140], "place": None, "rank": None,
          "right": "(?i)input|batch|data|row|sample|outlier|filter", "wrong": ["[Ll]ower the learning rate", "GradScaler", "checkpoint"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(5107)
torch.set_num_threads(1)
NODATA = torch.finfo(torch.float32).max


def gauges(n):
    rain = torch.relu(torch.randn(n, 4, 40) - 0.8)
    kernel = torch.exp(-torch.arange(12.0) / 4).flip(0).repeat(4, 1, 1)
    flow = nn.functional.conv1d(rain, kernel, groups=4)           # n, 4, 29
    level = flow.sum(1)[:, -1:] / 4
    return flow[:, :, :-1], level


class Causal(nn.Conv1d):
    def forward(self, x):
        return super().forward(nn.functional.pad(x, ((self.kernel_size[0] - 1) * self.dilation[0], 0)))


class River(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = Causal(4, 20, 3)
        self.mid = Causal(20, 20, 3, dilation=3)
        self.back = Causal(20, 20, 3, dilation=9)
        self.gauge = nn.Linear(20, 1)
        self.act = nn.PReLU()

    def forward(self, x):
        for part in (self.front, self.mid, self.back):
            x = self.act(part(x))
        return self.gauge(x[..., -1])


river = River()
opt = torch.optim.SGD(river.parameters(), lr=0.01, momentum=0.9, nesterov=True)
handle = rangewatch.attach(river, opt)
for step in range(200):
    x, y = gauges(64)
    if step == 140:
        x[17, 2, 21] = NODATA
    loss = nn.functional.l1_loss(river(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 138 < step < 142:
        broken = sum(not p.isfinite().all() for p in river.parameters())
        print(step, "mae", loss.item(), "broken parameters", broken, flush=True)
handle.detach()
