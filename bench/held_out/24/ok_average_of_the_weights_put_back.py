"""A denoising diffusion net on spirals with a moving average of the weights. HEALTHY: each 60 steps the average is copied into the net (Reptile-like), the moments of Adam are emptied,
and the rate warms up over 10 steps anew; the loss is noisy by its nature, as each step draws its own noise levels.
Without Rangewatch: smoothed loss 1.0 to 0.48."""
EXPECT = {"healthy": True}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(2448); torch.set_num_threads(1)


class Denoiser(nn.Module):
    def __init__(self, w=96):
        super().__init__()
        self.inlet, self.time = nn.Linear(2, w), nn.Linear(8, w)
        self.layers = nn.ModuleList(nn.Linear(w, w) for _ in range(3))
        self.out = nn.Linear(w, 2)

    def forward(self, x, level):
        t = torch.cat([f(level * 2 ** i) for i in range(4) for f in (torch.sin, torch.cos)], 1)
        h = self.inlet(x) + self.time(t)
        for layer in self.layers:
            h = h + nn.functional.silu(layer(h))
        return self.out(h)


def spirals(n):
    r = torch.rand(n, 1).sqrt()
    a = 9 * r + math.pi * torch.randint(0, 2, (n, 1))
    return 1.6 * torch.cat((r * a.cos(), r * a.sin()), 1)


model = Denoiser()
average = [p.detach().clone() for p in model.parameters()]
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
smooth = 1.0
for step in range(220):
    if step and step % 60 == 0:
        with torch.no_grad():
            for p, q in zip(model.parameters(), average, strict=True):
                p.copy_(q)
        optimizer.state.clear()
    optimizer.param_groups[0]["lr"] = 2e-3 * min(1.0, (step % 60 + 1) / 10)
    x, level, noise = spirals(96), 1.5 * torch.rand(96, 1), torch.randn(96, 2)
    guess = model(torch.cos(level) * x + torch.sin(level) * noise, level)
    loss = (guess - noise).square().mean()
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for p, q in zip(model.parameters(), average, strict=True):
            q.lerp_(p, 0.1)
    smooth = 0.95 * smooth + 0.05 * loss.item()
    if step % 20 == 0 or step % 60 in (58, 59, 0, 1, 2) or step == 219:
        print(step, loss.item(), "smoothed", smooth, flush=True)
    handle.log(loss=loss.item())
handle.detach()
