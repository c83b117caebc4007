"""Lesion segmentation with a small convolutional net and a focal loss of gamma 0.5, written as (1 - pt) ** gamma * bce. FAULT at step 140: images of a
second scanner, with nine times the contrast, give logits so sure that sigmoid rounds to exactly 1: pt is 1, the derivative of 0 ** 0.5 is Inf,
times a bce of 0 is NaN. The forward and the loss are finite. Without Rangewatch: loss 0.51 to 0.006 at step 139, 0.068 at step 140 with a gradient
of NaN, all weights NaN from step 141 on; the largest logit is 10 before and 76 at step 140.
Report: kornia/kornia#918 (NaN gradients of the focal loss where the sigmoid is 1 or 0 and 0 < gamma < 1), fizyr/keras-retinanet#706,
kaidic/LDAM-DRW#17.
Cause: backward arithmetic, in the loss. Step: 140. Right: eps / clamp before the power / pow at 0. Wrong: learning rate, attention mask,
GradScaler."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [140, 141], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "eps|clamp|pow|sqrt|zero|at 0"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(503); torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 16, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(16, 1, 1)

    def forward(self, x):
        return self.head(self.encoder(x))


def batch(contrast=1.0, n=12, size=24):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    cx, cy, r = torch.randint(5, size - 5, (n, 1, 1)), torch.randint(5, size - 5, (n, 1, 1)), torch.randint(2, 5, (n, 1, 1))
    mask = (((xx - cx) ** 2 + (yy - cy) ** 2) < r ** 2).float().unsqueeze(1)
    return contrast * (mask - 0.3 + 0.35 * torch.randn(n, 1, size, size)), mask


def focal(logits, target, gamma=0.5):
    p = torch.sigmoid(logits)
    pt = torch.where(target > 0, p, 1 - p)
    return ((1 - pt) ** gamma * F.binary_cross_entropy_with_logits(logits, target, reduction="none")).mean()


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, mask = batch(9.0 if step >= 140 and step % 5 == 0 else 1.0)
    logits = model(x)
    loss = focal(logits, mask)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (139, 140, 141):
        print(step, loss.item(), logits.abs().max().item(), model.head.weight.grad.norm().item(), flush=True)
handle.detach()
