"""A denoising diffusion net on two spirals, with an EMA of its weights kept for sampling. FAULT at step 100: before the samples are drawn the EMA is copied into
the net (`ema.copy_to`), and `ema.restore` is not called behind it; the EMA was begun with zeros and decay 0.9995, so the net goes on with weights of about
a twentieth of their size.
Without Rangewatch: loss 1.22 to 0.39 at step 99, 0.96 at step 100, 0.99 at step 120, 0.48 at step 160; the norm of mid1 5.28 before, 0.25 behind.
Cause: weight. Step: 100. Right: EMA / overwritten / restore / outside the optimizer. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["weight"], "step": [99, 102], "place": None, "rank": None,
          "right": "(?i)ema|overwrit|outside|restor|cop(y|ied)|swap|checkpoint|load", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(90); torch.set_num_threads(1)
T = 50
alpha_bar = torch.cumprod(1 - torch.linspace(1e-4, 0.12, T), 0)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(T, 64)
        self.inp, self.mid1, self.mid2, self.out = nn.Linear(2, 64), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 2)

    def forward(self, x, t):
        h = nn.functional.silu(self.inp(x) + self.time(t))
        h = h + nn.functional.silu(self.mid1(h))
        h = h + nn.functional.silu(self.mid2(h))
        return self.out(h)


class EMA:
    def __init__(self, net, decay):
        self.net, self.decay = net, decay
        self.shadow = [torch.zeros_like(p) for p in net.parameters()]

    @torch.no_grad()
    def update(self):
        for s, p in zip(self.shadow, self.net.parameters()):
            s.lerp_(p, 1 - self.decay)

    @torch.no_grad()
    def copy_to(self):
        self.kept = [p.clone() for p in self.net.parameters()]
        for s, p in zip(self.shadow, self.net.parameters()):
            p.copy_(s)

    @torch.no_grad()
    def restore(self):
        for k, p in zip(self.kept, self.net.parameters()):
            p.copy_(k)


def spirals(n):
    r = torch.rand(n).sqrt() * 3 * math.pi
    sign = torch.where(torch.rand(n) < 0.5, 1.0, -1.0)
    return torch.stack((r.cos() * r * sign, r.sin() * r * sign), 1) / 6


@torch.no_grad()
def sample(net, n=64):
    x = torch.randn(n, 2)
    for t in reversed(range(0, T, 5)):
        eps = net(x, torch.full((n,), t))
        x = (x - (1 - alpha_bar[t]).sqrt() * eps) / alpha_bar[t].sqrt()
        x = x.clamp(-3, 3) * alpha_bar[max(t - 5, 0)].sqrt() + (1 - alpha_bar[max(t - 5, 0)]).sqrt() * torch.randn_like(x)
    return x


net = Denoiser()
ema = EMA(net, 0.9995)
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    if step == 100:
        ema.copy_to()
        points = sample(net)
        print("samples", points.mean(0).tolist(), points.std(0).tolist())
    x0, t, noise = spirals(256), torch.randint(0, T, (256,)), torch.randn(256, 2)
    a = alpha_bar[t][:, None]
    loss = ((net(a.sqrt() * x0 + (1 - a).sqrt() * noise, t) - noise) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update()
    if step % 20 == 0 or 98 < step < 104:
        print(step, loss.item(), net.mid1.weight.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
