"""A PointNet that tells shapes (ball, cube, plane) in sets of up to 32 lidar points; the padding is taken out of the maximum with -inf. FAULT at step 127: a sweep
came back with no echo: a set of the batch is all padding, its maximum is -inf, the features behind are NaN and so is every weight after the step.
Without Rangewatch: loss 1.10 to 0.027 at step 126, NaN from 127.
Cause: mask, data or forward_arithmetic. Step: 127. Right: empty / padding / mask / -inf. Wrong: GradScaler, lower the learning rate."""
EXPECT = {"cause": ["mask", "data", "forward_arithmetic"], "step": [126, 130], "place": None, "rank": None,
          "right": "(?i)empty|padding|padded|mask|-inf|max|row", "wrong": ["GradScaler", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6105); torch.set_num_threads(1)


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, 48), nn.LeakyReLU(), nn.Linear(48, 96))
        self.body = nn.Sequential(nn.Linear(96, 64), nn.LeakyReLU(), nn.Linear(64, 3))

    def forward(self, xyz, count):
        h = self.point(xyz)
        pad = torch.arange(xyz.shape[1]) >= count[:, None]
        return self.body(h.masked_fill(pad[..., None], float("-inf")).amax(1))


def sweep(n, step):
    kind = torch.randint(0, 3, (n,))
    v = torch.randn(n, 32, 3)
    ball = v / v.norm(dim=2, keepdim=True)
    cube = v / v.abs().amax(2, keepdim=True)
    plane = v * torch.tensor([0.8, 0.8, 0.05])
    xyz = torch.where((kind == 0)[:, None, None], ball, torch.where((kind == 1)[:, None, None], cube, plane))
    count = torch.randint(6, 33, (n,))
    if step == 127:
        count[11] = 0
    return xyz + 0.03 * torch.randn(n, 32, 3), count, kind


net = PointNet()
optimizer = torch.optim.Adagrad(net.parameters(), lr=0.02)
handle = rangewatch.attach(net, optimizer)
for step in range(190):
    xyz, count, kind = sweep(48, step)
    loss = F.cross_entropy(net(xyz, count), kind)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (126, 127, 128, 189):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
