"""A residual net that grades wine from eleven assays in their own units; a scaler takes off the mean and divides by the deviation. FAULT at step 125: the scaler is built anew for a
second lab with `with_std` left at its default False: the assays keep their units (deviations from 0.1 to 60).
Without Rangewatch: loss 1.38 to 0.29 at step 124, 57.8 at step 125, 88.5 at 126, NaN by step 140.
Cause: data. Step: 125. Right: input / deviation / normalis / scale. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [124, 129], "place": None, "rank": None,
          "right": "(?i)input|deviation|normali|standardi|scal|preproc|pipeline|batch|data", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3022); torch.set_num_threads(1)
units = torch.tensor([1.7, 0.18, 0.2, 1.4, 0.05, 10.0, 33.0, 0.1, 0.15, 0.17, 60.0])
level = torch.tensor([8.3, 0.5, 0.27, 2.5, 0.09, 16.0, 46.0, 1.0, 3.3, 0.66, 300.0])
taste, bend = torch.randn(11, 4), torch.randn(11, 4)


class Scaler:
    def __init__(self, sample, with_std=False):
        self.mean = sample.mean(0)
        self.std = sample.std(0) if with_std else torch.ones(())

    def __call__(self, x):
        return (x - self.mean) / self.std


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, h):
        return h + self.b(F.silu(self.a(h)))


def bottles(n):
    z = torch.randn(n, 11)
    return level + units * z, (z @ taste + (z @ bend).sin()).argmax(1)


net = nn.Sequential(nn.Linear(11, 48), Residual(48), Residual(48), nn.Linear(48, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.8)
scaler = Scaler(bottles(1000)[0], with_std=True)
handle = rangewatch.attach(net, optimizer)
for step in range(210):
    if step == 125:
        scaler = Scaler(bottles(1000)[0])
    x, y = bottles(64)
    loss = F.cross_entropy(net(scaler(x)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (124, 125, 126, 209):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
