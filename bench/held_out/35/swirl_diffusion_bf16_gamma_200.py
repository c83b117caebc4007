"""A small denoiser learns to draw a two-armed spiral (epsilon prediction, sinusoidal time features, bf16 autocast, AdamW). FAULT at step 150: `MultiStepLR(milestones=[150], gamma=200)`; a typing error for 0.2. The rate jumps from 2e-3 to 0.4.
Without Rangewatch: loss 1.1 to 0.55 at step 150; 188 at 151, 1.4e6 at 152, 2.7e11 at 153, and between 1e6 and 3e7 to the end.
Cause: learning_rate. Step: 150. Right: the rate jumped x200 in the schedule (gamma). Wrong: GradScaler, attention mask, checkpoint, bf16 range overflow."""
EXPECT = {"cause": ["learning_rate"], "step": [149, 154], "place": None, "rank": None,
          "right": "(?i)learning rate|\\blr\\b|schedul|gamma", "wrong": ["GradScaler", "attention mask", "checkpoint"]}
import math
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(5115)
torch.set_num_threads(1)
T = 50
keep = torch.cos(torch.linspace(0.02, 1.52, T)) ** 2


def spiral(n):
    r = torch.rand(n, 1).sqrt()
    a = 6 * r + math.pi * torch.randint(0, 2, (n, 1))
    return torch.cat([r * a.cos(), r * a.sin()], 1) * 2 + 0.03 * torch.randn(n, 2)


class TimeWaves(nn.Module):
    def forward(self, t):
        w = t[:, None].float() / T * torch.tensor([1.0, 2.0, 4.0, 8.0]) * math.pi
        return torch.cat([w.sin(), w.cos()], 1)


class Denoiser(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.when = TimeWaves()
        self.enter = nn.Linear(10, width)
        self.core = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.noise = nn.Linear(width, 2)

    def forward(self, x, t):
        h = F.silu(self.enter(torch.cat([x, self.when(t)], 1)))
        for lin in self.core:
            h = h + F.silu(lin(h))
        return self.noise(h)


net = Denoiser()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
sched = torch.optim.lr_scheduler.MultiStepLR(opt, milestones=[150], gamma=200)
handle = rangewatch.attach(net, opt)
for step in range(240):
    x0, t, eps = spiral(256), torch.randint(0, T, (256,)), torch.randn(256, 2)
    a = keep[t][:, None]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        guess = net(a.sqrt() * x0 + (1 - a).sqrt() * eps, t)
    loss = F.mse_loss(guess.float(), eps)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 0 or 148 < step < 155:
        print(step, f"loss {loss.item():.4g} rate {opt.param_groups[0]['lr']:.2g}", flush=True)
    sched.step()
    handle.log(loss=loss.item())
handle.detach()
