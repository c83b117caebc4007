"""Noise in X-ray strips: a small residual convolutional denoiser, bfloat16 autocast on the CPU, Adam; the learning rate comes from a table {first step: rate} looked up by hand.
FAULT at step 120: the table's second line was meant to be 5e-4 and reads 5e-1.
Without Rangewatch: loss 0.18 to 0.012 at step 119, 2.5 at 121, 4e9 at 122, still 3e6 at the end although the rate is small again.
Cause: learning_rate (jump by a factor of 250). Step: 120. Right: mend the table, lower the rate. Wrong: raise the learning rate, attention mask, GradScaler."""
EXPECT = {"cause": ["learning_rate"], "step": [119, 130], "place": None, "rank": None,
          "right": r"(?i)learning rate|\brate\b|\blr\b|table|schedul|step size|warm.?up", "wrong": [r"(?i)(raise|increase) the learning rate", "GradScaler", r"(?i)attention mask"]}
import bisect
import torch
from torch import nn
import rangewatch

torch.set_num_threads(1)
gen = torch.Generator().manual_seed(70)
torch.manual_seed(71)

RATES = {0: 2e-3, 120: 5e-1, 220: 1e-4}
FIRST = sorted(RATES)


def rate_at(step):
    return RATES[FIRST[bisect.bisect_right(FIRST, step) - 1]]


def strips(n):
    x = torch.linspace(0, 1, 24)
    k = 2 + 6 * torch.rand(n, 1, 1, 2, generator=gen)
    clean = torch.sin(k[..., :1] * x) * torch.cos(k[..., 1:] * x[:12, None])
    return clean + 0.4 * torch.randn(clean.shape, generator=gen), clean


class Denoiser(nn.Module):
    def __init__(self, ch=16):
        super().__init__()
        self.enter = nn.Conv2d(1, ch, 3, padding=1)
        self.middle = nn.ModuleList([nn.Conv2d(ch, ch, 3, padding=1) for _ in range(3)])
        self.leave = nn.Conv2d(ch, 1, 3, padding=1)

    def forward(self, y):
        h = torch.nn.functional.silu(self.enter(y))
        for conv in self.middle:
            h = h + torch.nn.functional.silu(conv(h))
        return y - self.leave(h)


net = Denoiser()
opt = torch.optim.Adam(net.parameters(), lr=RATES[0])
handle = rangewatch.attach(net, opt)
step = 0
while step < 280:
    for group in opt.param_groups:
        group["lr"] = rate_at(step)
    noisy, clean = strips(16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = net(noisy)
    loss = (out.float() - clean).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or step in (119, 121, 122, 123):
        print(f"{step:4d} loss {loss.item():.4f} lr {rate_at(step):g}", flush=True)
    step += 1
handle.detach()
