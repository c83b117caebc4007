"""Flow matching on two-dimensional data with a time-conditioned MLP, bf16 autocast, an exponential average of the weights (0.999). FAULT: the
validation every 80 steps copies the average into the model and does not bring the trained weights back; the average is young, so training falls
back almost to its start, at steps 80, 160 and 240. Without Rangewatch: loss 9.7 to 3.9 at step 79, 9.6 at step 80, back at 3.9 by step 100; 8.0 at
step 160, 6.2 at step 240.
Report: PKU-YuanGroup/Open-Sora-Plan#186 (missed to restore model weights after validation with EMA on).
Cause: weights written from outside the optimizer; the optimizer's state no longer fits them. Right: restore after validation / who wrote the
weights. Wrong: lower the learning rate, data, mask, precision."""
EXPECT = {"cause": ["weight", "optimizer"], "step": [79, 84], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "float32", "GradScaler", "leave out samples"],
          "right": "restor|overwr|written|wrote|copied|copy|loaded|EMA|average|checkpoint|outside"}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(12); torch.set_num_threads(1)


class Velocity(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, d), nn.SiLU(), nn.Linear(d, d))
        self.inp, self.out = nn.Linear(2, d), nn.Linear(d, 2)
        self.blocks = nn.ModuleList([nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d)) for _ in range(3)])

    def forward(self, x, t):
        angle = t[:, None] * 2.0 ** torch.arange(8) * math.pi / 2
        x = self.inp(x) + self.time(torch.cat([angle.sin(), angle.cos()], 1))
        for block in self.blocks:
            x = x + block(x)
        return self.out(x)


class EMA:
    def __init__(self, model, decay=0.999):
        self.decay, self.shadow = decay, [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow, model.parameters()):
            s.lerp_(p, 1 - self.decay)

    @torch.no_grad()
    def store(self, model):
        self.kept = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def copy_to(self, model):
        for s, p in zip(self.shadow, model.parameters()):
            p.copy_(s)


def moons(n):
    angle = math.pi * torch.rand(n)
    upper = torch.rand(n) < 0.5
    x = torch.stack([torch.where(upper, angle.cos(), 1 - angle.cos()), torch.where(upper, angle.sin(), 0.5 - angle.sin())], 1)
    return 4 * (x - torch.tensor([0.5, 0.25])) + 0.05 * torch.randn(n, 2)


def loss_of(model, n=256):
    data, noise, t = moons(n), torch.randn(n, 2), torch.rand(n)
    with torch.autocast("cpu", torch.bfloat16):
        v = model((1 - t)[:, None] * noise + t[:, None] * data, t)
    return (v.float() - (data - noise)).square().mean()


model = Velocity()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
ema = EMA(model)
watch = rangewatch.attach(model, optimizer)
for step in range(250):
    if step and step % 80 == 0:
        ema.store(model)
        ema.copy_to(model)
        model.eval()
        with torch.no_grad():
            print("validation", round(loss_of(model).item(), 4))
        model.train()
    loss = loss_of(model)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update(model)
    watch.log(loss=loss.item())
    if step % 10 == 0 or 77 <= step < 83:
        print(step, round(loss.item(), 4))
