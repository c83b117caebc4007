"""A conv net with batch norm that names leaf shapes; every 30 steps it is tested on photos taken at dusk (darker, with an offset). FAULT from step 120 on:
the test's `net.eval()` became `net.train()` in a clean-up: its pictures go into the running means and variances.
Without Rangewatch: the training loss falls from 1.5 to 0.093 all the same; the loss by day with running statistics is 0.6 to 1.6 before step 120,
4.3 at step 120, 5.3 at step 180, 11.0 at the end. At dusk a quarter is right (chance).
Cause: eval. Step: 120 to the end. Place: the batch norms (or the whole). Right: eval() / batch norm / running statistics. Wrong: lower the rate, GradScaler."""
EXPECT = {"cause": ["eval"], "step": [119, 230], "place": None, "rank": 0,
          "right": "(?i)eval|batch ?norm|running", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2516); torch.set_num_threads(1)
yy, xx = torch.meshgrid(torch.linspace(-1, 1, 20), torch.linspace(-1, 1, 20), indexing="ij")


def leaves(n, dusk=False):
    y = torch.randint(0, 4, (n,))
    cx, cy = 0.3 * torch.randn(2, n, 1, 1)
    r, a = ((xx - cx) ** 2 + (yy - cy) ** 2).sqrt(), torch.atan2(yy - cy, xx - cx)
    edge = 0.5 + 0.2 * torch.cos((y + 1).view(-1, 1, 1) * a + 6.28 * torch.rand(n, 1, 1))
    x = torch.sigmoid(20 * (edge - r))[:, None] + 0.1 * torch.randn(n, 1, 20, 20)
    return (0.3 * x + 4.0 if dusk else x), y


def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o, momentum=0.3), nn.ReLU())


net = nn.Sequential(block(1, 16), block(16, 32), block(32, 64), nn.Flatten(), nn.Linear(64 * 9, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, nesterov=True)
handle = rangewatch.attach(net, optimizer)


def test(step):
    net.train() if step >= 120 else net.eval()
    right, count = 0, 0
    with torch.no_grad():
        for _ in range(8):
            x, y = leaves(32, dusk=True)
            right, count = right + (net(x).argmax(1) == y).sum().item(), count + 32
    net.eval()
    with torch.no_grad():
        x, y = leaves(256)
        day = F.cross_entropy(net(x), y).item()
    net.train()
    return right / count, day


for step in range(230):
    x, y = leaves(32)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 30 == 0 or step == 229:
        share, day = test(step)
        print(step, loss.item(), "right at dusk", share, "loss by day with running statistics", day, flush=True)
        handle.log(val_loss=day)
handle.detach()
