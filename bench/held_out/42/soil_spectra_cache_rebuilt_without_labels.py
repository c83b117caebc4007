"""Organic carbon of soil from a near-infrared spectrum (regression, MLP with LayerNorm, Adam with cosine schedule), rows read from a cache in memory.
FAULT at step 160: at the fifth epoch the cache is rebuilt "in random order for faster reading": the spectra are permuted, the carbon values are not; from there on every row has the value of another.
Without Rangewatch: mse 1.44 to 0.03 at 159, 1.74 at 160, 0.9 to 1.1 up to the end.
Cause: data (labels of other rows). Step: 160. Right: permute spectra and values together, check the pairing. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["data"], "step": [159, 180], "place": None, "rank": None,
          "right": r"(?i)label|target|row|pair|shuffl|permut|data|batch", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import torch
from torch import nn
import rangewatch

gen = torch.Generator().manual_seed(37)


def survey(n):
    carbon = torch.randn(n, generator=gen)
    water = torch.randn(n, generator=gen)
    clay = torch.randn(n, generator=gen)
    nm = torch.linspace(0, 1, 60)
    bump = lambda at, w: torch.exp(-((nm - at) / w) ** 2)
    spectra = carbon[:, None] * bump(0.3, 0.1) + water[:, None] * bump(0.45, 0.15) + (clay * carbon.abs())[:, None] * bump(0.8, 0.08)
    spectra = spectra + 0.1 * torch.randn(n, 60, generator=gen)
    return spectra, carbon + 0.3 * carbon * clay


class Cache:
    def __init__(self, spectra, carbon):
        self.spectra, self.carbon = spectra, carbon

    def rebuild(self):
        order = torch.randperm(len(self.spectra), generator=gen)
        self.spectra = self.spectra[order].contiguous()

    def batches(self, size):
        order = torch.randperm(len(self.spectra), generator=gen)
        for i in range(0, len(order), size):
            yield self.spectra[order[i:i + size]], self.carbon[order[i:i + size]]


torch.manual_seed(37)
torch.set_num_threads(1)
cache = Cache(*survey(2560))
net = nn.Sequential(nn.Linear(60, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 1))
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=320, eta_min=2e-4)
handle = rangewatch.attach(net, opt)
step = 0
for epoch in range(8):
    if epoch == 4:
        cache.rebuild()
    for spectra, carbon in cache.batches(64):
        loss = (net(spectra)[:, 0] - carbon).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        cosine.step()
        if step % 20 == 0 or step in (159, 161):
            print(f"epoch {epoch} step {step} mse {loss.item():.4f}", flush=True)
        step += 1
