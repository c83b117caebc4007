"""A temporal convolution net forecasts a wind turbine's power an hour ahead from four sensors (RMSprop, windows read in time order).
FAULT at step 138: planted as it is met. The logger dropped a reading of the nacelle's temperature, pandas wrote NaN for it, and the first window that covers that row comes up in step 138.
Without Rangewatch: mae 1.09 to 0.17 at step 137, NaN from step 138 on.
Cause: data. Step: 138. Right: NaN in the batch / fill or drop the missing values. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["data"], "step": [137, 140], "place": None, "rank": None,
          "right": r"(?i)(input|batch|data|sample|row|window|reading).{0,60}(nan|non-?finite|missing)|(nan|non-?finite|missing).{0,60}(input|batch|data|sample|row)|impute|dropna|nan_to_num",
          "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip the grad"]}
import math
import torch
import torch.nn as nn
import rangewatch

torch.manual_seed(60)
torch.set_num_threads(1)

HOURS, WIN, BS = 9000, 36, 32
hour = torch.arange(HOURS).float()
wind = 8 + 3 * torch.sin(2 * math.pi * hour / 24) + 2 * torch.sin(2 * math.pi * hour / 171) + 0.4 * torch.randn(HOURS)
power = (wind.clamp(3, 12) - 3) ** 2 / 81 + 0.02 * torch.randn(HOURS)
temp = 12 + 6 * torch.sin(2 * math.pi * (hour - 5) / 24) + 0.5 * torch.randn(HOURS)
rotor = wind * 1.4 + 0.3 * torch.randn(HOURS)
frame = torch.stack([wind, temp, rotor, power], dim=1)
frame = (frame - frame.mean(0)) / frame.std(0)
target = frame[:, 3].clone()
frame[138 * BS + WIN + 10, 1] = float("nan")     # lost by the logger


class CausalBlock(nn.Module):
    def __init__(self, cin, cout, dilation):
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        self.conv = nn.Conv1d(cin, cout, 3, dilation=dilation)
        self.skip = nn.Conv1d(cin, cout, 1)

    def forward(self, x):
        return torch.tanh(self.conv(self.pad(x))) + self.skip(x)


class TCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.stack = nn.Sequential(CausalBlock(4, 24, 1), CausalBlock(24, 24, 2), CausalBlock(24, 24, 4))
        self.regressor = nn.Linear(24, 1)

    def forward(self, x):
        return self.regressor(self.stack(x.transpose(1, 2))[:, :, -1]).squeeze(1)


tcn = TCN()
optim = torch.optim.RMSprop(tcn.parameters(), lr=1e-3)
watch = rangewatch.attach(tcn, optim)
for step in range(240):
    starts = step * BS + torch.arange(BS)
    x = torch.stack([frame[s:s + WIN] for s in starts])
    y = target[starts + WIN]
    optim.zero_grad()
    loss = nn.functional.l1_loss(tcn(x), y)
    loss.backward()
    optim.step()
    if step % 20 == 0 or 135 < step < 142:
        print(step, "mae", round(loss.item(), 4), flush=True)
    watch.log(loss=loss.item())
watch.detach()
