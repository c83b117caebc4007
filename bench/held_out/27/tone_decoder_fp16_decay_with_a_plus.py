"""An autoencoder of tones (1-d convs, group norm), fp16 autocast and GradScaler, weight decay by hand. FAULT from step 40: the decay is switched on, and its sign is
wrong: the convs before a norm are multiplied by 1.08 each step. The norm hides it, until the conv's fp16 output is inf.
Without Rangewatch: loss 1.32 to 0.08 at step 40, 0.05 to 0.12 up to step 170, NaN before step 180; the greatest weight of the first conv goes from 0.39 to
9400 at step 170, the scale from 256 to nothing.
Cause: weight, regularization, forward_arithmetic, optimizer or loss_scale. Step: 40 to the overflow. Place: the convs before a norm. Right: weight / decay / grow / norm / fp16. Wrong: attention mask."""
EXPECT = {"cause": ["weight", "regularization", "forward_arithmetic", "optimizer", "loss_scale"], "step": [39, 185], "place": "(down|up)\\.0.*", "rank": None,
          "right": "(?i)weight|decay|grow|norm|overflow|fp16|float16|half|range|65504|outside", "wrong": ["attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2728); torch.set_num_threads(1)
t = torch.arange(64) / 64.0


def tones(n):
    f = 1 + 3 * torch.rand(n, 2, 1)
    wave = torch.sin(6.28 * (f * t + torch.rand(n, 2, 1))).sum(1, keepdim=True)
    return wave + 0.05 * torch.randn(n, 1, 64)


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv1d(1, 24, 8, 4, padding=2, bias=False), nn.GroupNorm(4, 24), nn.SiLU())
        self.code = nn.Conv1d(24, 8, 3, padding=1)
        self.up = nn.Sequential(nn.Conv1d(8, 24, 3, padding=1, bias=False), nn.GroupNorm(4, 24), nn.SiLU())
        self.out = nn.ConvTranspose1d(24, 1, 8, 4, padding=2)

    def forward(self, x):
        return self.out(self.up(self.code(self.down(x))))


net = Coder()
decayed = [net.down[0].weight, net.up[0].weight]
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1000)
handle = rangewatch.attach(net, optimizer, scaler=scaler)
for step in range(240):
    x = tones(24)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
    loss = nn.functional.mse_loss(out.float(), x)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step >= 40:
        with torch.no_grad():
            for w in decayed:
                w.add_(w, alpha=0.08)
    if step % 20 == 0 or step in (39, 41, 150, 170, 239):
        print(step, loss.item(), "down", net.down[0].weight.abs().max().item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
