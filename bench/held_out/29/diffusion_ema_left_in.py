"""A diffusion model of a two-moon cloud with an EMA of its weights. FAULT at step 150: to draw samples, the EMA weights (decay 0.999, still near the first
random ones) are loaded into the net; nobody puts the trained ones back, the training goes on from there with Adam's old moments.
Without Rangewatch: loss 1.02 to 0.43 at step 149, 0.84 at 150, 0.95 at 151, 0.61 at 160, 0.47 at the end.
Cause: weight (changed outside the optimizer) or eval. Step: 150. Right: EMA / restore / outside / overwritten. Wrong: GradScaler, learning rate."""
EXPECT = {"cause": ["weight", "eval"], "step": [149, 156], "place": None, "rank": None,
          "right": "(?i)EMA|restor|outside|overwrit|load_state|checkpoint|changed|copy|swap", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2906); torch.set_num_threads(1)
steps_T = 100
beta = torch.linspace(1e-4, 0.06, steps_T)
abar = torch.cumprod(1 - beta, 0)


def moons(n):
    a, up = 3.1416 * torch.rand(n), torch.rand(n) < 0.5
    x = torch.where(up, a.cos(), 1 - a.cos())
    y = torch.where(up, a.sin(), 0.5 - a.sin())
    return torch.stack((x - 0.5, y - 0.25), 1) * 1.5 + 0.05 * torch.randn(n, 2)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(steps_T, 32)
        self.inp = nn.Linear(2, 96)
        self.temb = nn.Linear(32, 96)
        self.mid = nn.Sequential(nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU())
        self.out = nn.Linear(96, 2)

    def forward(self, x, t):
        return self.out(self.mid(self.inp(x) + self.temb(self.time(t))))


@torch.no_grad()
def sample(model, n=256):
    x = torch.randn(n, 2)
    for i in reversed(range(steps_T)):
        e = model(x, torch.full((n,), i))
        x = (x - beta[i] / (1 - abar[i]).sqrt() * e) / (1 - beta[i]).sqrt()
        if i:
            x = x + beta[i].sqrt() * torch.randn(n, 2)
    return x


net = Denoiser()
ema = copy.deepcopy(net).requires_grad_(False)
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(240):
    x0, t = moons(256), torch.randint(0, steps_T, (256,))
    noise = torch.randn_like(x0)
    xt = abar[t, None].sqrt() * x0 + (1 - abar[t, None]).sqrt() * noise
    loss = F.mse_loss(net(xt, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for pe, p in zip(ema.parameters(), net.parameters()):
            pe.lerp_(p, 0.001)
    if step % 20 == 0 or step in (149, 150, 151, 239):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
    if step == 149:
        net.load_state_dict(ema.state_dict())
        print("samples' spread", sample(net).std(0).tolist(), flush=True)
handle.detach()
