"""A separable convolution net that judges the ripeness of tomatoes by heat pictures. FAULT at step 125: a hot pixel of the camera is inf in one picture (16 bit
read as half float). Batch norm makes the whole batch NaN, and then its running mean.
Without Rangewatch: loss 1.12 to 0.21 at step 124, NaN from step 125 on.
Cause: data. Step: 125. Right: batch / input / data / pixel. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["data"], "step": [124, 126], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "(?i)batch|input|data|loader|inf"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2029); torch.set_num_threads(1)
r, c = torch.meshgrid(torch.arange(14.0), torch.arange(14.0), indexing="ij")


def pictures(n):
    y = torch.randint(0, 3, (n,))
    size = 2.0 + torch.rand(n, 1, 1) * 2
    away = ((r - 7 - torch.randn(n, 1, 1)) ** 2 + (c - 7 - torch.randn(n, 1, 1)) ** 2).sqrt()
    x = 290 + 6 * torch.sigmoid(size - away) + 2 * (y[:, None, None] - 1) * torch.exp(-away / size) + 0.5 * torch.randn(n, 14, 14)
    return x[:, None] / 290 * 10 - 10, y


def separable(i, o):
    return nn.Sequential(nn.Conv2d(i, i, 3, padding=1, groups=i), nn.Conv2d(i, o, 1), nn.BatchNorm2d(o), nn.Hardswish())


model = nn.Sequential(separable(1, 12), separable(12, 24), nn.AvgPool2d(2), separable(24, 24), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(190):
    x, y = pictures(32)
    if step == 125:
        x[20, 0, 3, 11] = float("inf")
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 123 < step < 128 or step == 189:
        print(step, loss.item(), "inf in batch", int(x.isinf().sum()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
