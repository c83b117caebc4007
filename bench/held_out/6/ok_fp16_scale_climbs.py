"""Autocast to float16 with a GradScaler that may grow every 15 steps, and clipping after unscale_. The scale climbs from 16384 until gradients overflow in
float16, a step is skipped, it halves, and so on: eleven skipped steps of 260. HEALTHY. Without Rangewatch: loss 1.84 to 0.13, scale up to 524288."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(626); torch.set_num_threads(1)


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(24, 64)
        self.body = nn.Sequential(nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 6))

    def forward(self, x):
        return self.body(self.inside(x))


kinds = torch.randn(6, 24)
model = Mixer()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14, growth_interval=15)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
skipped = 0
for step in range(260):
    y = torch.randint(0, 6, (32,))
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(kinds[y] + 1.5 * torch.randn(32, 24))
    loss = F.cross_entropy(logits.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skipped += scaler.get_scale() < before
    handle.log(loss=loss.item())
    if step % 20 == 0 or step == 259:
        print(step, loss.item(), "scale", scaler.get_scale(), "skipped", skipped, flush=True)
handle.detach()
