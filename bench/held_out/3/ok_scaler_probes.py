"""Tabular regression in fp16 autocast with a GradScaler that starts at 2**10 and doubles every 15 steps: it probes for the largest scale, overflows,
skips that step and comes back, again and again, as it is meant to. Targets are heavy-tailed, Huber loss. HEALTHY: some of the steps are
skipped, gradients hold Inf in those. Without Rangewatch: loss 1.21 to 0.2; 5 of the first 200 steps skipped, the scale goes between 65536 and
131072."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(71); torch.set_num_threads(1)


class Residual(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        return x + self.body(x)


model = nn.Sequential(nn.Linear(12, 64), Residual(64), Residual(64), nn.LayerNorm(64), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=15)
watch = rangewatch.attach(model, optimizer, scaler=scaler)
skipped = 0
for step in range(220):
    x = torch.randn(96, 12)
    y = 2 * x[:, 0] * x[:, 1] + x[:, 2].abs() + 0.3 * torch.distributions.StudentT(2.5).sample((96,))
    with torch.autocast("cpu", torch.float16):
        loss = F.huber_loss(model(x).float().squeeze(1), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skipped += scaler.get_scale() < before
    watch.log(loss=loss.item())
    if step % 20 == 0:
        print(step, round(loss.item(), 4), scaler.get_scale(), "skipped", skipped)
