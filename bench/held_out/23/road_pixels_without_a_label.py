"""A small U-Net that marks road, field and water in aerial pictures; pixels without a label are 255 and left out by a factor 0. FAULT at step 115: a batch
comes from a sheet that was never labelled; all its pixels are 255, the mean, written as sum / number of labelled pixels, is 0/0 and the loss NaN.
Without Rangewatch: loss 1.12 to 0.11 at step 114, NaN at step 115 and at each step after it.
Causes: data (no label in the batch), mask (all is left out), forward_arithmetic (0/0). Right: label / target / batch / empty. Wrong: lower the
rate, GradScaler."""
EXPECT = {"cause": ["data", "mask", "forward_arithmetic"], "step": [114, 116], "place": None, "rank": 0,
          "right": "(?i)label|target|ignore|batch|empty|loss|divi", "wrong": ["GradScaler", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2330); torch.set_num_threads(1)
hue = torch.tensor([[0.5, 0.5, 0.5], [0.3, 0.7, 0.2], [0.1, 0.3, 0.8]])


class SmallUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.c, self.d = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(48, 3, 3, padding=1)
        self.na, self.nb = nn.BatchNorm2d(16), nn.BatchNorm2d(32)

    def forward(self, x):
        high = F.hardswish(self.na(self.a(x)))
        low = F.hardswish(self.nb(self.b(high)))
        low = F.hardswish(self.c(low))
        return self.d(torch.cat((high, F.interpolate(low, scale_factor=2)), 1))


model = SmallUNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    land = F.interpolate(torch.randn(12, 3, 4, 4), size=16, mode="bilinear").argmax(1)
    picture = hue[land].permute(0, 3, 1, 2) + 0.2 * torch.randn(12, 3, 16, 16)
    label = torch.where(torch.rand(12, 16, 16) < 0.3, 255, land)
    if step == 115:
        label[:] = 255
    labelled = (label != 255).float()
    each = F.cross_entropy(model(picture), label.clamp(max=2), reduction="none")
    loss = (each * labelled).sum() / labelled.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 113 < step < 118:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
