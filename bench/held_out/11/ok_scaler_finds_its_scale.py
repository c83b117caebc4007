"""Float16 under autocast with a GradScaler that starts far too high (2 ** 26) and doubles each 40 clean steps: the first steps are skipped until the scale
fits, and one is skipped now and then later on. HEALTHY.
Without Rangewatch: loss 1.76 to 0.035; 9 of the first 20 steps are skipped and three later ones; the scale goes from 2 ** 26 to 2 ** 17 and stays there."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1154); torch.set_num_threads(1)
SOILS = 5
tint = torch.randn(SOILS, 24)


class SoilNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(24, 48)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48)) for _ in range(3))
        self.soil = nn.Linear(48, SOILS)

    def forward(self, x):
        h = self.enter(x)
        for block in self.blocks:
            h = h + block(h)
        return self.soil(h)


model = SoilNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 26, growth_interval=40)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
skipped = 0
for step in range(240):
    soil = torch.randint(0, SOILS, (32,))
    x = tint[soil] + 1.5 * torch.randn(32, 24)
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x)
    loss = F.cross_entropy(out.float(), soil)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    skipped += scaler.get_scale() < before
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "scale", scaler.get_scale(), "skipped", skipped, flush=True)
    handle.log(loss=loss.item())
handle.detach()
