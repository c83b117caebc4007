"""Slopes and offsets of point clouds (PointNet with max pooling), fp16 autocast, GradScaler from 2**24 down (thread: 'Detected call of lr_scheduler.step() before optimizer.step(), and GradScaler gives inf at first').
HEALTHY: with the high first scale the scaled gradients of the first steps are inf, the scaler skips these steps and halves its scale until they fit; unscale_ stands before the clip, and the schedule moves only when a step was made. From then on it trains.
Without Rangewatch: scale 2**24 down to 131072 in the first 7 skipped steps; loss 0.42 to 0.003."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(80); torch.set_num_threads(1)


def clouds(n=16, points=48):
    normal = torch.randn(n, 2) * 0.6
    xy = torch.rand(n, points, 2) * 2 - 1
    z = (xy * normal[:, None]).sum(-1, keepdim=True) + 0.02 * torch.randn(n, points, 1)
    return torch.cat([xy, z], -1), normal


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.local_mlp = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 96), nn.ReLU())
        self.global_mlp = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, p):
        return self.global_mlp(self.local_mlp(p).amax(1))


net = PointNet()
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=4e-3, total_steps=260, pct_start=0.2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=1000)
handle = rangewatch.attach(net, opt)
skipped = 0
for step in range(240):
    p, target = clouds()
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        pred = net(p)
    loss = nn.functional.mse_loss(pred.float(), target)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    before = scaler.get_scale()
    scaler.step(opt)
    scaler.update()
    if scaler.get_scale() >= before:
        sched.step()
    else:
        skipped += 1
    handle.log(loss=loss.item())
    if step % 30 == 0 or step == 239:
        print(f"step {step} loss {loss.item():.5f} scale {scaler.get_scale():.0f} skipped so far {skipped}", flush=True)
handle.detach()
