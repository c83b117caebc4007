"""A small U-Net, fp16 autocast with GradScaler, binary cross entropy and soft dice over the batch. FAULT at step 120: progressive resizing goes from
32 to 112 pixels; the dice sums stay in fp16 and the pixels of a batch pass 65504: inf / inf. Every step from there on is skipped and the scale
halves. Without Rangewatch: loss 1.02 to 0.54 at step 119, NaN at step 120, the scale halves at every step from there on (0.125 at step 135).
Report: qubvel-org/segmentation_models.pytorch#463 (soft_dice_score is inf in float16, images of 512 x 512), ultralytics/ultralytics#24554.
Cause: overflow of fp16 in the loss, whose arithmetic then is inf / inf. Right: sums in float32 / the dice out of autocast. Wrong: lower the
learning rate, a smaller initial loss scale, data, mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [119, 122], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "initial scale", "init_scale", "leave out samples"],
          "right": "float32|fp32|float16|65504|overflow|bfloat16|sum|loss"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6); torch.set_num_threads(1)


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(2, o), nn.ReLU())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.mid = conv(1, 4), conv(4, 8), conv(8, 8)
        self.up2, self.up1, self.out = conv(16, 8), conv(12, 4), nn.Conv2d(4, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.mid(F.max_pool2d(b, 2))
        b = self.up2(torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        return self.out(self.up1(torch.cat([F.interpolate(b, scale_factor=2), a], 1)))


def images(size, n=8):
    grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij"))
    centre, radius = 0.4 * torch.rand(n, 2, 1, 1) - 0.2, 0.85 + 0.2 * torch.rand(n, 1, 1)
    target = ((grid - centre).norm(dim=1) < radius).float()[:, None]
    return target + 0.8 * torch.randn(n, 1, size, size), target


def dice(logits, target):
    p, t = logits.sigmoid(), target.to(logits.dtype)
    return 1 - 2 * (p * t).sum() / (p.sum() + t.sum())


model = UNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**13)
watch = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(150):
    x, target = images(32 if step < 120 else 112)
    with torch.autocast("cpu", torch.float16):
        logits = model(x)
        loss = F.binary_cross_entropy_with_logits(logits.float(), target) + dice(logits, target)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer); scaler.update()
    watch.log(loss=loss.item())
    if step % 15 == 0 or 118 <= step < 123:
        print(step, round(loss.item(), 4), scaler.get_scale())
