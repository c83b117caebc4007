"""A conv net in half precision with a GradScaler that begins at 2^10 and doubles every 12 steps: the scale climbs till some gradients overflow, a step is skipped, the scale is
halved, and so on. HEALTHY: that is how the scaler finds its scale.
Without Rangewatch: loss 1.59 to 0.004 to 0.15 (noisy); the scale goes from 1024 to between 65536 and 131072, eight steps are skipped."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3024); torch.set_num_threads(1)
shapes = torch.randn(5, 1, 12, 12)
net = nn.Sequential(nn.Conv2d(1, 12, 4, 2), nn.ReLU(), nn.Conv2d(12, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 9, 5))
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=12)
handle = rangewatch.attach(net, optimizer, scaler=scaler)
skipped, scale = 0, scaler.get_scale()
for step in range(220):
    y = torch.randint(0, 5, (16,))
    x = shapes[y] + 2.0 * torch.randn(16, 1, 12, 12)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(net(x).float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    skipped += scaler.get_scale() < scale
    scale = scaler.get_scale()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "scale", scale, "skipped", skipped, flush=True)
    handle.log(loss=loss.item())
handle.detach()
