"""A small encoder-decoder marks bright cells in microscope tiles under bfloat16 autocast (Adam). FAULT: the binary cross-entropy is written by hand on sigmoid outputs, with no epsilon:
when the net grows sure, the sigmoid rounds to 1 in bfloat16, log(1 - p) is -inf and 0 * -inf is NaN.
Without Rangewatch: loss 0.66 to 0.059 at step 120 (largest p 0.996), NaN at step 124, where the script ends.
Cause: forward_arithmetic. Step: 124. Right: log / epsilon / clamp / logits. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [123, 128], "place": None, "rank": None,
          "right": "(?i)log|eps|clamp|sigmoid|logits|divi", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(346); torch.set_num_threads(1)
yy, xx = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")


def tiles(n):
    cx, cy, r = torch.rand(n, 2, 1, 1) * 24, torch.rand(n, 2, 1, 1) * 24, 3 + 2 * torch.rand(n, 2, 1, 1)
    mask = (((xx - cx) ** 2 + (yy - cy) ** 2) < r ** 2).any(1, keepdim=True).float()
    return mask + 0.5 * torch.randn(n, 1, 24, 24), mask


class Marker(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc1 = nn.Conv2d(1, 12, 3, padding=1)
        self.enc2 = nn.Conv2d(12, 24, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(24, 12, 2, stride=2)
        self.out = nn.Conv2d(24, 1, 3, padding=1)

    def forward(self, x):
        a = self.enc1(x).relu()
        b = self.up(self.enc2(a).relu()).relu()
        return torch.sigmoid(self.out(torch.cat([a, b], 1)))


def bce(p, y):
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()


model = Marker()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    x, y = tiles(8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        p = model(x)
        loss = bce(p, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 259 or (loss.isnan() and step % 5 == 0):
        print(step, loss.item(), "largest p", p.max().item(), flush=True)
    handle.log(loss=loss.item())
    if loss.isnan():
        print("NaN at", step)
        break
handle.detach()
