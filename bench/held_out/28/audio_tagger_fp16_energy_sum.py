"""A frame-wise tagger of sounds under fp16 autocast with GradScaler. It divides each clip by the root of its energy, and FAULT: the energy is the plain sum of squares over
the filter outputs of a clip in half precision. The quiet recordings of the first part keep it under 65504; from step 110 the loud part of the set (amplitude 30 to 50) makes it inf, the feature 0,
and the samples of it no more than zeros, for the net sees x / inf.
Without Rangewatch: loss 1.61 to 0.12 at step 109, 1.67 at step 110, 1.59 to 1.75 (log 5 is 1.61) from there to the end; scale 1024 throughout.
Cause: forward_arithmetic (data: the loud part). Step: 110. Right: fp16 overflow / float32 / mean / normalise. Wrong: lower the learning rate, attention mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [109, 114], "place": None, "rank": None,
          "right": "(?i)float32|fp32|fp16|half|overflow|65504|bf16|bfloat16|precision|normali|data|range", "wrong": ["[Ll]ower the learning rate", "attention mask", "(?i)all_reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(440); torch.set_num_threads(1)


class EnergyNorm(nn.Module):
    def forward(self, x):
        return x / x.pow(2).sum(-1, keepdim=True).sqrt() * x.shape[-1] ** 0.5


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.filters = nn.Linear(64, 16)
        self.norm = EnergyNorm()
        self.mix = nn.Linear(16, 24)
        self.fc = nn.Linear(24, 5)

    def forward(self, x):
        h = self.norm(self.filters(x.unfold(1, 64, 32)).flatten(1)).view(len(x), -1, 16)
        return self.fc(F.relu(self.mix(F.relu(h))).mean(1))


t = torch.arange(1600) / 1600


def clips(n, loud):
    y = torch.randint(0, 5, (n,))
    f = torch.tensor([40.0, 75.0, 120.0, 180.0, 260.0])[y] * (1 + 0.03 * torch.randn(n))
    wave = torch.sin(6.283 * (f[:, None] * t + torch.rand(n, 1))) + 0.4 * torch.randn(n, 1600)
    gain = 30 + 20 * torch.rand(n, 1) if loud else 0.2 + 0.6 * torch.rand(n, 1)
    return wave * gain, y


net = Tagger()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
handle = rangewatch.attach(net, optimizer, scaler=scaler)
for step in range(160):
    x, y = clips(12, step >= 110)
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
        loss = F.cross_entropy(out.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or 107 < step < 116:
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
