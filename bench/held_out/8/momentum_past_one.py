"""A keypoint net (convolutions, group norm) in the manner of YOLO: SGD whose momentum is warmed up from 0.8 in a straight line. FAULT from about step
120 on: the line has no end at 0.937: momentum passes 1 at step 120 and the velocity grows by itself from there on.
Without Rangewatch: loss 0.27 to 0.026 at step 120, 0.06 at step 140, 0.23 at step 180, 9 at step 220, 12000 at step 240.
Report: after warmup_momentum of ultralytics/yolov5, np.interp(ni, [0, nw], [0.8, momentum]), which someone writes anew as a line.
Cause: optimizer. Step: 120 and after. Right: momentum / optimizer. Wrong: GradScaler, mask, data order."""
EXPECT = {"cause": ["optimizer"], "step": [110, 230], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "shuffl"],
          "right": "momentum|optimi[sz]er|veloc"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(816); torch.set_num_threads(1)


def pictures(n=24):
    at = torch.rand(n, 2) * 1.6 - 0.8
    grid = torch.linspace(-1, 1, 14)
    dots = torch.exp(-((grid[None, :, None] - at[:, :1, None]) ** 2 + (grid[None, None] - at[:, 1:, None]) ** 2) / 0.05)
    return dots[:, None] + 0.2 * torch.randn(n, 1, 14, 14), at


model = nn.Sequential(
    nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.SiLU(),
    nn.Conv2d(16, 24, 3, stride=2, padding=1), nn.GroupNorm(4, 24), nn.SiLU(), nn.Flatten(), nn.Linear(24 * 16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.8)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    for group in optimizer.param_groups:
        group["momentum"] = 0.8 + 0.2 * step / 120
    x, at = pictures()
    loss = F.mse_loss(model(x), at)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0:
        print(step, loss.item(), "momentum", optimizer.param_groups[0]["momentum"], flush=True)
handle.detach()
