"""Leaf diseases on tiny pictures: convnet with GroupNorm, float16 autocast on the CPU, GradScaler begun at 2**24, RAdam, gradients clipped after unscale_.
HEALTHY: in the first steps the scaled gradients overflow to inf, the scaler skips these steps and halves its scale until it fits; later it tries a doubling now and then. No inf ever reaches the weights.
Without Rangewatch: norm NaN or inf in steps 0 to 5 while the scale falls from 2**24 to 2**18; loss 1.39 to 0.80."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(616); torch.set_num_threads(1)
KINDS = 4
spots = torch.randn(KINDS, 3, 5, 5)


def leaves(n):
    kind = torch.randint(0, KINDS, (n,))
    x = 0.5 * torch.randn(n, 3, 14, 14) + torch.tensor([0.0, 0.4, 0.0])[None, :, None, None]
    for i in range(n):
        for _ in range(2):
            r, c = torch.randint(0, 10, (2,)).tolist()
            x[i, :, r:r + 5, c:c + 5] += spots[kind[i]]
    return x, kind


class LeafNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stage1 = nn.Sequential(nn.Conv2d(3, 16, 5, padding=2), nn.GroupNorm(4, 16), nn.ReLU())
        self.stage2 = nn.Sequential(nn.Conv2d(16, 24, 3, stride=2, padding=1), nn.GroupNorm(4, 24), nn.ReLU())
        self.disease = nn.Linear(24, KINDS)

    def forward(self, x):
        return self.disease(self.stage2(self.stage1(x)).mean((2, 3)))


net = LeafNet()
opt = torch.optim.RAdam(net.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=80)
handle = rangewatch.attach(net, opt)
for step in range(180):
    x, kind = leaves(32)
    with torch.autocast("cpu", dtype=torch.float16):
        logits = net(x)
    loss = nn.functional.cross_entropy(logits.float(), kind)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    norm = nn.utils.clip_grad_norm_(net.parameters(), 2.0)
    scaler.step(opt)
    scaler.update()
    handle.log(loss=loss.item())
    if step % 20 == 0 or step < 12 or step == 179:
        print(f"step {step} loss {loss.item():.4f} norm {norm.item():.3f} scale {scaler.get_scale():.0f}", flush=True)
handle.detach()
