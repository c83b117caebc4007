"""Outlines of bright lesions in 24x24 slices: a two-level U-Net, bf16 autocast and torch.amp.GradScaler, SGD with Nesterov momentum, clip_grad_norm_(1.0).
FAULT at step 0: clip_grad_norm_ comes before scaler.unscale_: it clips gradients that carry the scale of 65536, step() divides afterwards, and what arrives has a norm of at most 1/65536.
Without Rangewatch: bce 0.627 at step 0, 0.625 at 149; the last layer moves by 3e-7 in step 0 and 2.4e-4 in 150 steps (with unscale_ first: bce 0.34 at step 15, 0.16 at 149).
Cause: clip (of scaled gradients) / loss_scale. Step: from 0. Right: scaler.unscale_(optimizer) before the clip. Wrong: lower the learning rate, attention mask, BatchNorm."""
EXPECT = {"cause": ["clip", "loss_scale"], "step": [0, 100], "place": None, "rank": None,
          "right": r"(?i)unscale|scaled grad|clip|loss scale|\bscale", "wrong": [r"(?i)lower the learning rate", r"(?i)attention mask", r"(?i)all_reduce"]}
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(90)
torch.set_num_threads(1)
yy, xx = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")


def slices(n):
    c = 5 + 14 * torch.rand(n, 2, 1, 1)
    r = 2 + 4 * torch.rand(n, 1, 1)
    mask = (((yy - c[:, 0]) ** 2 + (xx - c[:, 1]) ** 2) < r ** 2).float()
    tissue = F.interpolate(torch.randn(n, 1, 6, 6), size=(24, 24), mode="bilinear").squeeze(1)
    return (0.6 * tissue + 1.5 * mask + 0.4 * torch.randn(n, 24, 24))[:, None], mask[:, None]


def double(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.down1, self.down2 = double(1, c), double(c, 2 * c)
        self.up1 = double(3 * c, c)
        self.outc = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        return self.outc(self.up1(torch.cat([a, F.interpolate(b, scale_factor=2)], 1)))


unet = UNet()
opt = torch.optim.SGD(unet.parameters(), lr=0.1, momentum=0.9, nesterov=True)
scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
handle = rangewatch.attach(unet, opt)
start = unet.outc.weight.detach().clone()
for step in range(150):
    image, mask = slices(12)
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = unet(image)
    loss = F.binary_cross_entropy_with_logits(logits.float(), mask)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    handle.log(loss=loss.item())
    if step % 15 == 0 or step == 149:
        print(f"step {step} bce {loss.item():.4f} last layer moved by {(unet.outc.weight - start).abs().max().item():.2e}", flush=True)
handle.detach()
