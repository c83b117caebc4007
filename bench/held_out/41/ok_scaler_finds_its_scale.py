"""Removal of noise from 1-d scans (fp16 autocast on CPU, GradScaler with a very high first scale), AdamW, OneCycle.
HEALTHY: with an initial scale of 2**26 the first backwards overflow float16, the scaler skips these steps and halves the scale until it fits: this is what it is for. Afterwards no step is lost.
Without Rangewatch: loss 0.13 to 0.019; scale 2**26 to 2**21 in the first 5 steps, all of them skipped, none later."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(16)
torch.set_num_threads(1)
STEPS = 200


def scans(n):
    t = torch.linspace(0, 1, 48)
    bump = torch.exp(-((t - torch.rand(n, 1)) / 0.08) ** 2) + 0.5 * torch.sin(6.28 * (t * (1 + 2 * torch.rand(n, 1)) + torch.rand(n, 1)))
    return bump + 0.3 * torch.randn(n, 48), bump


class Denoiser(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.inp = nn.Linear(48, d)
        self.mid = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.out = nn.Linear(d, 48)

    def forward(self, x):
        h = torch.relu(self.inp(x))
        for m in self.mid:
            h = h + torch.relu(m(h))
        return x - self.out(h)


net = Denoiser()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=4e-3, total_steps=STEPS)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 26)
handle = rangewatch.attach(net, opt)
skipped = 0
for step in range(STEPS):
    noisy, clean = scans(64)
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(noisy)
    loss = nn.functional.mse_loss(out.float(), clean)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    before = scaler.get_scale()
    scaler.step(opt)
    scaler.update()
    if scaler.get_scale() < before:
        skipped += 1
    else:
        sched.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or step == STEPS - 1:
        print(f"step {step} loss {loss.item():.4f} scale 2**{torch.tensor(scaler.get_scale()).log2().item():.0f} skipped {skipped}", flush=True)
handle.detach()
