"""An MLP-mixer over 8 depths reads soil spectra (regression, AdamW). After 120 steps the trunk is frozen and zero-initialised bottleneck adapters are tuned for another lab's instrument. FAULT at step 120: their group is added with `lr=1e3` (1e-3 was meant):
each weight of an adapter moves by some 1000 in the first step.
Without Rangewatch: mse 0.69 to 0.08 at step 119; 1.22 at step 120 (the other lab, not yet adapted; the adapters' weights are then 1000), 6e15 at 121, 8e30 at 122, inf at 123, NaN after.
Cause: learning_rate (of the adapters' group). Step: 120. Right: the adapters' rate of 1000 is far too high. Wrong: GradScaler, attention mask, bad data, checkpoint."""
EXPECT = {"cause": ["learning_rate"], "step": [119, 124], "place": r"(.*adapt.*)?", "rank": None,
          "right": "(?i)learning rate|\\blr\\b|rate", "wrong": ["GradScaler", "attention mask", "checkpoint"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(5112)
torch.set_num_threads(1)
secret = torch.randn(8, 12) / 6


def spectra(n, other_lab):
    x = torch.randn(n, 8, 12)
    clay = torch.tanh((x * secret).sum((1, 2))) + 0.05 * torch.randn(n)
    return (x.flip(2) * 1.2 + 0.3 if other_lab else x), clay


class Adapter(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down, self.up = nn.Linear(width, 4), nn.Linear(4, width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x):
        return x + self.up(torch.relu(self.down(x)))


class MixLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(24), nn.LayerNorm(24)
        self.depths = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.bands = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))
        self.adapt = Adapter(24)

    def forward(self, x):
        x = x + self.depths(self.n1(x).mT).mT
        return self.adapt(x + self.bands(self.n2(x)))


class Soil(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(12, 24)
        self.mix = nn.ModuleList([MixLayer(), MixLayer()])
        self.clay = nn.Linear(8 * 24, 1)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.mix:
            x = layer(x)
        return self.clay(x.flatten(1)).squeeze(1)


soil = Soil()
trunk = [p for k, p in soil.named_parameters() if ".adapt." not in k]
adapters = [p for k, p in soil.named_parameters() if ".adapt." in k]
for p in adapters:
    p.requires_grad_(False)
opt = torch.optim.AdamW(trunk, lr=2e-3)
handle = rangewatch.attach(soil, opt)
for step in range(190):
    if step == 120:
        for p in trunk:
            p.requires_grad_(False)
        for p in adapters:
            p.requires_grad_(True)
        opt.add_param_group({"params": adapters, "lr": 1e3})
    x, clay = spectra(96, step >= 120)
    loss = nn.functional.mse_loss(soil(x), clay)
    opt.zero_grad()
    loss.backward()
    opt.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 118 < step < 124:
        print(step, "mse", f"{loss.item():.4g}", "largest adapter weight", f"{max(p.abs().max().item() for p in adapters):.4g}", flush=True)
handle.detach()
