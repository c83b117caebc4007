"""A recurrent net that takes noise from speech-like waves, fp16 autocast and GradScaler. FAULT at step 60: an automatic gain is put before the decoder; it is
multiplied by the wanted loudness over the loudness measured BEFORE the gain, so it never comes to rest and grows by a third each step.
Without Rangewatch: loss 0.19 to 0.036 at step 59, 0.11 at step 61, 76 at step 90, inf at step 97 and NaN from step 98; the gain is 97 at step 75, 6900 at step 90;
the scale falls from 1024 to nothing.
Cause: forward_arithmetic or weight (a buffer that grows); loss_scale where it falls late. Step: 60 on. Right: grow / gain / overflow / fp16 / output. Wrong: attention mask."""
EXPECT = {"cause": ["forward_arithmetic", "weight", "loss_scale", "(none)"], "step": [59, 110], "place": None, "rank": None,
          "right": "(?i)grow|gain|overflow|fp16|float16|half|activation|output|buffer|range|scale|65504", "wrong": ["attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2713); torch.set_num_threads(1)
t = torch.arange(32) / 32.0


def speech(n):
    pitch, swell = 2 + 3 * torch.rand(n, 1), torch.rand(n, 1)
    wave = torch.sin(6.28 * pitch * t + 6.28 * torch.rand(n, 1)) * (0.5 + swell * t)
    return (wave + 0.4 * torch.randn(n, 32))[..., None], wave[..., None]


class Gain(nn.Module):
    def __init__(self, loudness):
        super().__init__()
        self.loudness, self.on = loudness, False
        self.register_buffer("gain", torch.ones(()))

    def forward(self, h):
        if not self.on:
            return h
        with torch.no_grad():
            measured = h.float().pow(2).mean().sqrt()
            self.gain *= (self.loudness / measured) ** 0.5
        return h * self.gain


class Aid(nn.Module):
    def __init__(self):
        super().__init__()
        self.frames = nn.Linear(1, 32)
        self.state = nn.RNN(32, 48, batch_first=True)
        self.level = Gain(loudness=0.9)
        self.decode = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            h = self.state(self.frames(x).float())[0]
        return self.decode(self.level(h))


net = Aid()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
handle = rangewatch.attach(net, optimizer, scaler=scaler)
for step in range(230):
    net.level.on = step >= 60
    x, y = speech(32)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
    loss = nn.functional.smooth_l1_loss(out.float(), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 15 == 0 or step in (59, 61, 229):
        print(step, loss.item(), "gain", net.level.gain.item(), "output", out.abs().max().item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
