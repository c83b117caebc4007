"""HEALTHY: spiral diffusion with an EMA that is swapped into the model for sampling each 50 steps and swapped back, in train() mode under no_grad
one time and in eval() the other; min-SNR weights, zero-initialised last layer; 300 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class Net(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.inp, self.time = nn.Linear(2, d), nn.Sequential(nn.Linear(16, d), nn.SiLU(), nn.Linear(d, d))
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.SiLU(), nn.Dropout(0.05), nn.Linear(d, d)) for _ in range(3))
        self.out = nn.Linear(d, 2)
        nn.init.zeros_(self.out.weight); nn.init.zeros_(self.out.bias)
    def forward(self, x, t):
        angle = t[:, None] * torch.exp(torch.linspace(0, 5, 8))
        h = self.inp(x) + self.time(torch.cat([angle.sin(), angle.cos()], 1))
        for block in self.blocks:
            h = h + block(h)
        return self.out(h)

net = Net()
ema = [p.detach().clone() for p in net.parameters()]
opt = torch.optim.AdamW(net.parameters(), 1e-3)
watch = rangewatch.attach(net, opt)
alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.05, 100), 0)

def swap():
    for p, e in zip(net.parameters(), ema):
        kept = p.data.clone()
        p.data.copy_(e); e.copy_(kept)

for step in range(300):
    r = torch.rand(128) * 3
    x = torch.stack([r * (3 * r).cos(), r * (3 * r).sin()], 1) / 2
    t, noise = torch.randint(0, 100, (128,)), torch.randn(128, 2)
    a = alphas[t][:, None]
    snr = (a / (1 - a)).squeeze(1)
    loss = (snr.clamp(max=5) / snr * F.mse_loss(net(a.sqrt() * x + (1 - a).sqrt() * noise, t / 100), noise, reduction="none").mean(1)).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    for e, p in zip(ema, net.parameters()):
        e.lerp_(p.detach(), 0.01)
    watch.log(loss=loss.item())
    if step % 50 == 49:
        swap()
        if step % 100 == 99:
            net.eval()
        with torch.no_grad():
            s = torch.randn(64, 2)
            for i in reversed(range(0, 100, 5)):
                s = s - 0.05 * net(s, torch.full((64,), i / 100))
        net.train()
        swap()
        print(step, loss.item(), s.std().item())
