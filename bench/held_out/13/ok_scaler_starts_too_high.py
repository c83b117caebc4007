"""Float16 autocast with a GradScaler that starts at 2^32, so as to find the greatest scale that goes: the first steps are skipped while it halves, and
once in 50 good steps it doubles and may be halved again. HEALTHY.
Without Rangewatch: loss 1.95 to 0.47; skipped are steps 0 to 13, 44, 145 and 196; the scale is 2^17 or 2^18."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1346); torch.set_num_threads(1)
GRAINS = 6
grain = torch.randn(GRAINS, 50)


class GrainNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(50, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, GRAINS))

    def forward(self, x):
        return self.net(x)


def grains(n):
    y = torch.randint(0, GRAINS, (n,))
    return grain[y] + 2.5 * torch.randn(n, 50), y


model = GrainNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 32, growth_interval=50)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
skipped = []
for step in range(240):
    x, y = grains(48)
    with torch.autocast("cpu", torch.float16):
        logits = model(x)
    loss = F.cross_entropy(logits.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    skipped += [step] if scaler.get_scale() < before else []
    if step % 40 == 0 or step == 239:
        print(step, loss.item(), "scale", scaler.get_scale(), "skipped", skipped, flush=True)
    handle.log(loss=loss.item())
handle.detach()
