"""A small U-Net with autocast to bfloat16, a GradScaler and SGD. FAULT from step 0 on: clip_grad_norm_(1.0) comes before unscaling, so it is the scaled
gradient of norm 25000 that is cut to 1, and after unscaling an update is 65536 times too small. All stays finite, no step is skipped.
Without Rangewatch: loss 0.6365 at step 0, 0.6363 at step 239; the norm is 25870, which is 0.39 unscaled and would not have been clipped at all. (With
unscale_ before it the loss is 0.052 at step 40 and 0.027 at step 239.)
Report: milesial/Pytorch-UNet#468, pytorch/pytorch#40907 (the loss does not go down with clipping and a GradScaler), pytorch/examples#1196.
Cause: clip (or loss scale). Step: from 0. Right: unscale_ before the clip. Wrong: a lower learning rate, mask."""
EXPECT = {"cause": ["clip", "loss_scale"], "step": [0, 160], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask"],
          "right": "unscale|clip|max_norm"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(606); torch.set_num_threads(1)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
        self.down2 = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        return self.out(torch.cat([a, F.relu(self.up(self.down2(a)))], 1))


def batch(n=8, size=20):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    cx, cy, r = torch.randint(4, 16, (n, 1, 1)), torch.randint(4, 16, (n, 1, 1)), torch.randint(3, 6, (n, 1, 1))
    mask = (((xx - cx) ** 2 + (yy - cy) ** 2) < r ** 2).float().unsqueeze(1)
    return mask + 0.4 * torch.randn(n, 1, size, size), mask


model = UNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(240):
    x, mask = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.binary_cross_entropy_with_logits(model(x), mask)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # the gradients are still scaled here
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), norm.item(), scaler.get_scale(), flush=True)
handle.detach()
