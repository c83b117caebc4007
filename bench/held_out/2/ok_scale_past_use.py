"""Image-to-image net in fp16 autocast. The GradScaler starts at 2^26, far too high, and grows each 15 steps: it backs off ten times at the start, then grows
past what the gradients bear and backs off again, for the whole run; about one step in sixteen is skipped. HEALTHY: that is how dynamic loss scaling
finds its value; the loss falls."""
EXPECT = {"healthy": True}
import torch
from torch import nn
from torch.nn.functional import l1_loss
import rangewatch

torch.manual_seed(31)
torch.set_num_threads(1)


def smooth(n):
    coarse = torch.rand(n, 1, 4, 4)
    return nn.functional.interpolate(coarse, size=(16, 16), mode="bicubic", align_corners=False)


denoiser = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
    nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1),
)
opt = torch.optim.Adam(denoiser.parameters(), 2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26, growth_interval=15)
handle = rangewatch.attach(denoiser, opt, scaler=scaler)
skipped = 0
for step in range(130):
    clean = smooth(4)
    noisy = clean + 0.3 * torch.randn_like(clean)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = l1_loss(denoiser(noisy).float(), clean)
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(opt)
    old = scaler.get_scale()
    scaler.update()
    skipped += scaler.get_scale() < old
    handle.log(loss=loss.item())
    if step % 20 == 0:
        print(step, loss.item(), scaler.get_scale(), "skipped", skipped)
