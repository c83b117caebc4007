"""Next-hour power of a wind park from 48 hours of wind and temperature (dilated causal convolutions), AdamW, cosine schedule over all steps.
FAULT at step 0: the net returns (B, 1), the target is (B,): the hand-written squared error broadcasts to (B, B), each forecast is compared with each target and the best answer is the mean.
Without Rangewatch: mse 1.08 to 0.96, the variance of the target, from first to last; the forecasts' spread is 0.004 to 0.011 where the targets' is 1.0 (with shapes that match: 0.44 at step 25, 0.15 at 249, spread 0.93).
Cause: forward_arithmetic (loss shapes broadcast). Step: from 0. Right: squeeze the output / match shapes. Wrong: GradScaler, clip, attention mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [0, 200], "place": None, "rank": None,
          "right": r"(?i)broadcast|shape|squeeze|constant|mean of the target|same (output|prediction)|unsqueeze", "wrong": ["GradScaler", r"(?i)clip (the )?grad", r"(?i)attention mask"]}
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(31)
torch.set_num_threads(1)
HOURS = 6000
t = torch.arange(HOURS).float()
gust = torch.randn(HOURS)
wind = torch.zeros(HOURS)
for i in range(1, HOURS):
    wind[i] = 0.93 * wind[i - 1] + 0.35 * gust[i]
temperature = torch.sin(2 * math.pi * t / 24) + 0.2 * torch.randn(HOURS)
power = torch.tanh(1.2 * wind) + 0.25 * temperature
power = (power - power.mean()) / power.std()
series = torch.stack([wind, temperature])


class CausalConv(nn.Module):
    def __init__(self, cin, cout, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(cin, cout, 3, dilation=dilation)

    def forward(self, x):
        return F.gelu(self.conv(F.pad(x, (self.pad, 0))))


class TCN(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.stack = nn.Sequential(CausalConv(2, width, 1), CausalConv(width, width, 2), CausalConv(width, width, 4), CausalConv(width, width, 8))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.stack(x)[:, :, -1])


def sample(bs=64):
    start = torch.randint(0, HOURS - 49, (bs,))
    window = torch.stack([series[:, s:s + 48] for s in start.tolist()])
    return window, power[start + 48]


def mse(prediction, truth):
    return ((prediction - truth) ** 2).mean()


STEPS = 250
net = TCN()
opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
handle = rangewatch.attach(net, opt)
for step in range(STEPS):
    x, y = sample()
    forecast = net(x)
    loss = mse(forecast, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    handle.log(loss=loss.item())
    if step % 25 == 0 or step == STEPS - 1:
        print(f"{step:>4} mse {loss.item():.4f} spread of forecasts {forecast.std().item():.3f} of targets {y.std().item():.3f}", flush=True)
handle.detach()
