"""Forecast of a river's level three hours ahead from rain, temperature and level by a gated temporal convnet; NAdam, float32.
FAULT at step 140: one hour of one gauge in one batch holds netCDF's fill value 9.96921e36 instead of a measurement (the reader does not mask it). It is finite in the input; the forward makes about 1e36 of it, its square is inf and the weights' gradients overflow.
Without Rangewatch: mse 0.30 to 0.001 at step 139, inf at step 140, NaN from 141 on (without the fill value 0.002 at step 200).
Cause: data. Step: 140. Right: mask or drop the fill value / check the input batch. Wrong: lower the learning rate, GradScaler, reinitialise, clip."""
EXPECT = {"cause": ["data"], "step": [139, 142], "place": None, "rank": None,
          "right": r"(?i)input|batch|data|fill|sample|outlier", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "initialis"]}
import torch
from torch import nn
import rangewatch

FILL = 9.96921e36
gen = torch.Generator().manual_seed(3702)
torch.manual_seed(3702); torch.set_num_threads(1)


class GatedBlock(nn.Module):
    def __init__(self, cin, cout, dil):
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dil, 0), 0.0)
        self.value = nn.Conv1d(cin, cout, 3, dilation=dil)
        self.gate = nn.Conv1d(cin, cout, 3, dilation=dil)

    def forward(self, x):
        x = self.pad(x)
        return self.value(x) * torch.sigmoid(self.gate(x))


class Hydro(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(GatedBlock(3, 24, 1), GatedBlock(24, 24, 2), GatedBlock(24, 24, 4))
        self.forecast = nn.Conv1d(24, 1, 1)

    def forward(self, x):
        return self.forecast(self.blocks(x))[:, 0, -1]


def read_batch(step, hours=36, rows=32):
    rain = torch.relu(torch.randn(rows, hours + 3, generator=gen) - 0.8)
    warm = torch.sin(torch.arange(hours + 3) / 24 * 6.28 + 6.28 * torch.rand(rows, 1, generator=gen))
    level = torch.zeros(rows, hours + 3)
    for h in range(1, hours + 3):
        level[:, h] = 0.85 * level[:, h - 1] + 0.5 * rain[:, h - 1] - 0.02 * warm[:, h]
    x = torch.stack([rain, warm, level], 1)[:, :, :hours].clone()
    if step == 140:
        x[11, 2, 33] = FILL
    return x, level[:, hours]


net = Hydro()
opt = torch.optim.NAdam(net.parameters(), lr=3e-3)
handle = rangewatch.attach(net, opt)
for step in range(220):
    x, y = read_batch(step)
    pred = net(x)
    loss = (pred - y).pow(2).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if step % 20 == 0 or 138 <= step <= 143:
        print(step, "mse", loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
