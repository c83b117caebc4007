"""A denoiser of waves of 24 samples (diffusion, predicts the noise), Adam with LambdaLR: 90 steps of warm-up, then a cosine. FAULT: after the warm-up the lambda returns the rate itself (2e-3 * cosine), not a factor
of it: the optimizer's rate is 2e-3 * 2e-3 = 4e-6 from step 90 on.
Without Rangewatch: loss 1.30 to 0.81 at step 89, then flat near 0.8 to the end (0.45 with the right lambda).
Cause: learning_rate. Step: 90. Right: learning rate / scheduler / LambdaLR. Wrong: GradScaler, attention mask, lower the learning rate."""
EXPECT = {"cause": ["learning_rate"], "step": [88, 140], "place": None, "rank": None,
          "right": "(?i)learning.rate|\\blr\\b|schedul|lambda", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3326); torch.set_num_threads(1)
RATE, WARMUP, STEPS, LEVELS = 2e-3, 90, 300, 30
keep = torch.cos(torch.linspace(0.05, 1.45, LEVELS)) ** 2


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.level = nn.Embedding(LEVELS, 64)
        self.lift, self.mid, self.mid2, self.out = nn.Linear(24, 64), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 24)

    def forward(self, x, t):
        h = F.gelu(self.lift(x) + self.level(t))
        h = h + F.gelu(self.mid(h))
        return self.out(h + F.gelu(self.mid2(h)))


def factor(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    return RATE * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


net = Denoiser()
optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
handle = rangewatch.attach(net, optimizer)
for step in range(STEPS):
    x0 = 1.4 * torch.sin(6.2832 * torch.rand(128, 1) + (0.3 + 0.2 * torch.rand(128, 1)) * torch.arange(24.0))
    t = torch.randint(0, LEVELS, (128,))
    noise = torch.randn(128, 24)
    x = keep[t, None].sqrt() * x0 + (1 - keep[t, None]).sqrt() * noise
    loss = F.mse_loss(net(x, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 20 == 0 or 88 < step < 92 or step == STEPS - 1:
        print(step, loss.item(), "lr", scheduler.get_last_lr()[0], flush=True)
    handle.log(loss=loss.item())
handle.detach()
