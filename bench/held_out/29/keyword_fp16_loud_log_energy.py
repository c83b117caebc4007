"""A keyword spotter under fp16 autocast that pools the log of the energy of its filters. FAULT at step 120: the volume augmentation begins (gain up to 60);
the squares of the filters' outputs are taken in fp16, go over 65504 and become inf, their log is inf, the logits are NaN.
Without Rangewatch: loss 1.67 to 0.008 at step 119, NaN from step 120 to the end; the scale is halved at each step, 1024 to 8e-22.
Cause: forward_arithmetic (overflow in fp16), data (the loud clips) or loss_scale. Step: 120. Right: float32 / overflow / autocast. Wrong: attention mask."""
EXPECT = {"cause": ["forward_arithmetic", "data", "loss_scale"], "step": [119, 135], "place": None, "rank": None,
          "right": "(?i)float32|fp32|overflow|autocast|fp16|float16|half|bf16|bfloat16|range|normali[sz]|inf", "wrong": ["attention mask", "all_?reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2902); torch.set_num_threads(1)
t = torch.arange(400) / 400.0


def clips(n, loud):
    y = torch.randint(0, 5, (n,))
    f = (12 + 13 * y).float()[:, None] * (1 + 0.06 * torch.randn(n, 1))
    wave = torch.sin(6.283 * f * t + 6.283 * torch.rand(n, 1)) * torch.exp(-3 * (t - 0.5) ** 2) + 0.5 * torch.randn(n, 400)
    if loud:
        wave = wave * torch.exp(torch.rand(n, 1) * 4.1)
    return wave[:, None], y


class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.bank = nn.Conv1d(1, 24, 41, stride=4)
        self.mix = nn.Conv1d(24, 24, 5)
        self.out = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 5))

    def forward(self, x):
        h = self.mix(self.bank(x) * 8)
        energy = (h * h).mean(-1)
        return self.out(torch.log(energy + 1e-3))


net = Spotter()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
handle = rangewatch.attach(net, optimizer, scaler=scaler)
for step in range(200):
    x, y = clips(24, loud=step >= 120)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(net(x).float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step in (119, 121, 122, 125, 199):
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
