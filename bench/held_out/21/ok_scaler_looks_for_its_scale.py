"""A small diffusion net (MLP with a zero last layer and zero gates, on points of a moon) in float16 autocast; the GradScaler begins at 2**30 and looks for its scale. HEALTHY: odd is that the
first updates are skipped, that later one in sixty is (the scale is tried upwards), that gates and the last layer begin at 0, so that the layers behind have no gradient in the first updates.
Figures: loss 1.10 to 0.31; the first 14 steps are skipped, then step 164; the scale is 65,536 to 262,144."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2140)
torch.set_num_threads(1)


class Gated(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.a, self.b = nn.Linear(d, d), nn.Linear(d, d)
        self.gate = nn.Parameter(torch.zeros(d))

    def forward(self, h, t):
        return h + self.gate * self.b(torch.nn.functional.silu(self.a(self.norm(h) + t)))


class Denoiser(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.point, self.time = nn.Linear(2, d), nn.Linear(16, d)
        self.blocks = nn.ModuleList([Gated(d) for _ in range(3)])
        self.out = nn.Linear(d, 2)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x, t):
        waves = t[:, None] * 2.0 ** torch.arange(8)
        t = self.time(torch.cat((waves.sin(), waves.cos()), 1))
        h = self.point(x)
        for block in self.blocks:
            h = block(h, t)
        return self.out(h)


def moon(n):
    a = 3.1416 * torch.rand(n)
    return torch.stack((a.cos(), a.sin() - 0.5), 1) * 1.5 + 0.05 * torch.randn(n, 2)


model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 30, growth_interval=60)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
skipped = []
for step in range(240):
    x, t, noise = moon(256), torch.rand(256), torch.randn(256, 2)
    angle = t * 1.5
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        guess = model(angle.cos()[:, None] * x + angle.sin()[:, None] * noise, t)
    loss = (guess.float() - noise).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    if scaler.get_scale() < before:
        skipped.append(step)
    if step % 30 == 0 or step == 239:
        print(step, loss.item(), "scale", scaler.get_scale(), "skipped", skipped, flush=True)
    handle.log(loss=loss.item())
handle.detach()
