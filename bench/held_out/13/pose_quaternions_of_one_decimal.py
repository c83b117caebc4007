"""A net reads a tool's pose as a quaternion from 3D marks; the loss is the angle 2 * acos(|q . target|) between unit quaternions. FAULT at step 120: poses of
a second camera come, whose file has quaternions of one decimal; they are longer than one by some per cent, the product of a good answer with its target
exceeds 1, and acos is NaN there.
Without Rangewatch: loss 2.70 to 0.045 at step 119, NaN from step 120 on (greatest product 1.068).
Variant of: arccosine_beyond_one.
Cause: forward_arithmetic (or the targets: data). Step: 120. Right: acos / clamp / domain / target. Wrong: lower the learning rate, mask, GradScaler."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [119, 124], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "acos|clamp|domain|\\[-1, 1\\]|target|atan2|outside|arccos|loss"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1305); torch.set_num_threads(1)
marks = torch.randn(6, 3)


class PoseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(18, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 4))

    def forward(self, x):
        return F.normalize(self.net(x.flatten(1)), dim=1)


def turned(q):
    w, v = q[:, None, :1], q[:, None, 1:].expand(-1, 6, 3)
    p = marks.expand(len(q), 6, 3)
    t = 2 * torch.linalg.cross(v, p)
    return p + w * t + torch.linalg.cross(v, t)


def poses(n):
    q = F.normalize(torch.cat((torch.ones(n, 1), 0.25 * torch.randn(n, 3)), 1), dim=1)
    return turned(q) + 0.01 * torch.randn(n, 6, 3), q


model = PoseNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, q = poses(32)
    if step >= 120:
        q = (q * 10).round() / 10  # as the file has it
    dot = (model(x) * q).sum(1).abs()
    loss = (2 * torch.acos(dot if step >= 120 else dot * (1 - 1e-4))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 118 < step < 124:
        print(step, loss.item(), "greatest product", dot.max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
