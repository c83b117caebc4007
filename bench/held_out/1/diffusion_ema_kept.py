"""DDPM on 1-D signals with an EMA (0.9999, no warm-up). FAULT before step 200: for the validation the EMA's weights are copied into the
model, and store()/restore() is forgotten: training goes on from weights that are nearly the initial ones; the loss jumps back.
Report: PKU-YuanGroup/Open-Sora-Plan#186, huggingface/diffusers#7549 and #2321, harubaru/waifu-diffusion#31.
Cause: weight (all of them were overwritten between two steps), step 200. Right: the weights / restore. Wrong: learning rate, mask, bf16."""
EXPECT = {"cause": ["weight"], "step": [199, 201], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "GradScaler"], "right": "weight|restore|load|overwr|cop|EMA"}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(4); torch.set_num_threads(1)

class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm1, self.conv1, self.time = nn.GroupNorm(4, c), nn.Conv1d(c, c, 3, padding=1), nn.Linear(32, c)
        self.norm2, self.conv2 = nn.GroupNorm(4, c), nn.Conv1d(c, c, 3, padding=1)
    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(t)[..., None]
        return x + self.conv2(F.silu(self.norm2(h)))

class Denoiser(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.inp, self.res, self.out = nn.Conv1d(1, c, 3, padding=1), nn.ModuleList(Res(c) for _ in range(3)), nn.Conv1d(c, 1, 3, padding=1)
        self.embed = nn.Sequential(nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 32))
    def forward(self, x, t):
        angle = t[:, None] * torch.exp(torch.linspace(0, -6, 16))
        t = self.embed(torch.cat([angle.sin(), angle.cos()], 1))
        x = self.inp(x)
        for res in self.res:
            x = res(x, t)
        return self.out(x)

class Ema:
    def __init__(self, parameters, decay=0.9999):
        self.decay, self.shadow = decay, [p.detach().clone() for p in parameters]
    def step(self, parameters):
        for s, p in zip(self.shadow, parameters):
            s.lerp_(p.detach(), 1 - self.decay)
    def copy_to(self, parameters):
        for s, p in zip(self.shadow, parameters):
            p.data.copy_(s)

net = Denoiser()
ema = Ema(net.parameters())
opt = torch.optim.AdamW(net.parameters(), 1e-3)
watch = rangewatch.attach(net, opt)
alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.05, 200), 0)

def loss_of(n=24):
    x = torch.sin(torch.linspace(0, 2 * math.pi, 32) * torch.randint(1, 4, (n, 1)) + 6.28 * torch.rand(n, 1))[:, None]
    t, noise = torch.randint(0, 200, (n,)), torch.randn(n, 1, 32)
    a = alphas[t][:, None, None]
    return F.mse_loss(net(a.sqrt() * x + (1 - a).sqrt() * noise, t.float()), noise)

for step in range(300):
    if step == 200:
        ema.copy_to(net.parameters())
        net.eval()
        with torch.no_grad():
            print("validation", sum(loss_of() for _ in range(4)).item() / 4)
        net.train()
    loss = loss_of()
    opt.zero_grad(); loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    ema.step(net.parameters())
    watch.log(loss=loss.item())
    if step % 10 == 0:
        print(step, loss.item())
