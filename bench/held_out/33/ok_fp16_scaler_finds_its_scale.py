"""A highway net on tables under float16 autocast with a GradScaler that begins at 2**24, far too high, and grows again each 40 good steps (Adam, unscale_ before the clip). HEALTHY: the first steps and one in about forty later
overflow, are skipped, and the scale backs off; that is how the scaler finds its scale.
Without Rangewatch: loss 1.6 to 0.002; the first six steps are skipped, then three single ones."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3330); torch.set_num_threads(1)
prototypes = 1.3 * torch.randn(5, 24)


class Highway(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.carry, self.change = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        c = torch.sigmoid(self.carry(x))
        return c * x + (1 - c) * F.elu(self.change(x))


net = nn.Sequential(nn.Linear(24, 48), Highway(48), Highway(48), nn.Linear(48, 5))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=40)
handle = rangewatch.attach(net, optimizer)
skipped = 0
for step in range(220):
    y = torch.randint(0, 5, (48,))
    x = prototypes[y] + torch.randn(48, 24)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(net(x).float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    skipped += scaler.get_scale() < before
    if step % 20 == 0 or step < 6 or step == 219:
        print(step, loss.item(), "scale", scaler.get_scale(), "skipped", skipped, flush=True)
    handle.log(loss=loss.item())
handle.detach()
