"""An MLP on short waves in fp16 with GradScaler: the scale begins at 2**22 on purpose, the first steps overflow and are skipped, it falls to what the net bears and grows each 40 steps, where it overflows once
more and now and then. HEALTHY: this is how a scaler finds its scale.
Without Rangewatch: loss 1.37 to 0.002 at step 140 and 0.04 at the end; the scale 2**22 to 131072 by step 20, 2**20 at step 140, 524288 at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(222); torch.set_num_threads(1)
net = nn.Sequential(nn.Flatten(), nn.Linear(128, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 22, growth_interval=40)
handle = rangewatch.attach(net, optimizer, scaler=scaler)
t = torch.arange(64.0)
for step in range(200):
    y = torch.randint(0, 4, (32,))
    f = (0.2 + 0.12 * y[:, None]) * (1 + 0.05 * torch.randn(32, 1))
    x = torch.stack((torch.sin(f * t + 6.28 * torch.rand(32, 1)), torch.cos(f * t)), 1) + 0.7 * torch.randn(32, 2, 64)
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
        loss = F.cross_entropy(out.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
