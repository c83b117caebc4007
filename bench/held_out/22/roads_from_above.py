"""A little U-Net marks roads in pictures from the air (32 x 32, three colours). FAULT at step 104: in one picture of the batch one pixel of the red channel is inf
(the division by a gain of 0 in the camera). The convolutions make inf - inf = NaN of it, the loss is NaN, and all weights after the step.
Without Rangewatch: loss 0.71 to 0.146 at step 103, NaN from step 104 on.
Causes: data. Right: look at the batch / the input, check isfinite. Wrong: the rate, GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [103, 105], "place": None, "rank": 0,
          "right": "(?i)data|input|batch|image", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2215); torch.set_num_threads(1)
axis = torch.arange(32.0)


def twice(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(o, o, 3, padding=1), nn.LeakyReLU(0.1))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.deep, self.join = twice(3, 12), twice(12, 24), twice(36, 12)
        self.mark = nn.Conv2d(12, 1, 1)

    def forward(self, x):
        a = self.first(x)
        b = F.interpolate(self.deep(F.avg_pool2d(a, 2)), scale_factor=2)
        return self.mark(self.join(torch.cat((a, b), 1)))[:, 0]


def pictures(n):
    slope, cut = 2 * torch.rand(n, 1, 1) - 1, 8 + 16 * torch.rand(n, 1, 1)
    road = ((axis[None, :, None] - cut - slope * (axis[None, None, :] - 16)).abs() < 2.5).float()
    ground = torch.rand(n, 3, 1, 1) * 0.5 + 0.3 * torch.rand(n, 3, 32, 32)
    return torch.where(road[:, None] > 0, 0.45 + 0.1 * torch.randn(n, 1, 32, 32), ground), road


model = UNet()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(165):
    x, road = pictures(8)
    if step == 104:
        x[3, 0, 20, 9] = float("inf")
    loss = F.binary_cross_entropy_with_logits(model(x), road)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or step in (103, 104, 105, 164):
        print(step, loss.item(), flush=True)
handle.detach()
