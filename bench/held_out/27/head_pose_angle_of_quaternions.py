"""A net that gives the pose of a head as a quaternion, from nine marks; the loss is the angle between output and label, 2 acos|q . p| (RMSprop). FAULT at step
120: the labels of a second camera are rounded to two digits and no longer of length 1: the product with a good output is beyond 1, its arccosine NaN.
Without Rangewatch: loss 2.15 to 0.064 at step 119, NaN at step 120 and to the end (longest label 1.006).
Cause: forward_arithmetic, data or backward_arithmetic. Step: 120 or soon after. Right: acos / clamp / domain. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["forward_arithmetic", "data", "backward_arithmetic"], "step": [119, 130], "place": None, "rank": None,
          "right": "(?i)acos|arc|clamp|domain|beyond|range|normali[sz]|nan|data|label|target", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2707); torch.set_num_threads(1)
marks = torch.randn(9, 3)


def rotation(q):
    w, x, y, z = q.unbind(-1)
    return torch.stack((1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w),
                        2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w),
                        2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)), -1).view(-1, 3, 3)


def poses(n):
    q = torch.randn(n, 4) * 0.35
    q[:, 0] = 1
    q = F.normalize(q, dim=1)
    seen = torch.einsum("nij,mj->nmi", rotation(q), marks) + 0.01 * torch.randn(n, 9, 3)
    return seen.flatten(1), q


class Camera:
    def __init__(self, digits=None):
        self.digits = digits

    def __call__(self, n):
        x, q = poses(n)
        return x, q if self.digits is None else torch.round(q * 10 ** self.digits) / 10 ** self.digits


def angle(p, q):
    return 2 * torch.acos((p * q).sum(1).abs())


net = nn.Sequential(nn.Linear(27, 96), nn.ELU(), nn.Linear(96, 96), nn.ELU(), nn.Linear(96, 4))
optimizer = torch.optim.RMSprop(net.parameters(), lr=5e-4)
handle = rangewatch.attach(net, optimizer)
left, right = Camera(), Camera(digits=2)
for step in range(220):
    x, q = (left if step < 120 else right)(64)
    loss = angle(F.normalize(net(x), dim=1), q).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (119, 120, 121, 122, 219):
        print(step, loss.item(), "longest label", q.norm(dim=1).max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
