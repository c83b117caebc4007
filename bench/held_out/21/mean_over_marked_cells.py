"""A convolutional net fills in the gaps of a map of soil moisture; its loss is the mean over the marked cells, one quotient for each map. FAULT at step 118: on one map of the batch a cloud
hides all that might be marked: the sum 0 divided by the number 0 is NaN, and so is the mean over the batch and each gradient.
Without Rangewatch: loss 0.79 to 0.061 at step 117, NaN at step 118 and at each step after it.
Cause: forward_arithmetic (0 / 0), the empty mask (mask) or data. Step: 118. Right: divide / zero / empty / mask / clamp / eps. Wrong: GradScaler, lower the learning rate."""
EXPECT = {"cause": ["forward_arithmetic", "mask", "data"], "step": [117, 120], "place": None, "rank": 0,
          "right": "(?i)divi|zero|empty|mask|clamp|eps|loss|batch|input", "wrong": ["GradScaler", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2132)
torch.set_num_threads(1)


class Filler(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(2, 24, 5, padding=2, padding_mode="circular"), nn.Hardswish(), nn.Conv2d(24, 24, 3, padding=2, dilation=2),
                                    nn.Hardswish(), nn.Conv2d(24, 1, 3, padding=1))

    def forward(self, x, marked):
        return self.layers(torch.stack((x * ~marked, marked.float()), 1))[:, 0]


def soils(n):
    base = F.interpolate(torch.randn(n, 1, 3, 3), size=12, mode="bicubic")[:, 0]
    return base + 0.05 * torch.randn(n, 12, 12), torch.rand(n, 12, 12) < 0.2


model = Filler()
optimizer = torch.optim.Adamax(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    x, marked = soils(32)
    if step == 118:
        marked[20] = False
    error = (model(x, marked) - x).square() * marked
    loss = (error.sum((1, 2)) / marked.sum((1, 2))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 116 < step < 121 or step == 179:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
