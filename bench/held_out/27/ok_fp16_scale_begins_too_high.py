"""A net that sorts accelerometer windows into six movements, fp16 autocast and a GradScaler that begins at 2 ** 26 (Adam). HEALTHY: the first steps overflow, are
skipped and halve the scale, as meant; after that nothing is skipped but for one probe, and the net learns.
Without Rangewatch: loss 1.88 to 0.004; nine steps skipped, the last before step 40; the scale 3.4e7 to 1.3e5, 2.6e5 at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2735); torch.set_num_threads(1)
t = torch.arange(40) / 40.0
kinds = torch.randn(6, 3, 1)


def movements(n):
    y = torch.randint(0, 6, (n,))
    pace = (2 + y.float())[:, None, None]
    x = torch.sin(6.28 * (pace * t + torch.rand(n, 1, 1))) * kinds[y] + 0.3 * torch.randn(n, 3, 40)
    return x.flatten(1), y


net = nn.Sequential(nn.Linear(120, 96), nn.LayerNorm(96), nn.Hardswish(), nn.Linear(96, 64), nn.LayerNorm(64), nn.Hardswish(), nn.Linear(64, 6))
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 26, growth_interval=150)
handle = rangewatch.attach(net, optimizer, scaler=scaler)
skipped = 0
for step in range(200):
    x, y = movements(48)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
    loss = F.cross_entropy(out.float(), y)
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skipped += scaler.get_scale() < before
    if step % 20 == 0 or step in (5, 10, 199):
        print(step, loss.item(), "scale", scaler.get_scale(), "skipped", skipped, flush=True)
    handle.log(loss=loss.item())
handle.detach()
