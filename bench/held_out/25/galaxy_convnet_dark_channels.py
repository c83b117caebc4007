"""A conv net that sorts galaxies (spiral, bar, disc). FAULT at step 90: a `calibration` of the second conv's bias takes off the largest value of each channel
where the mean was meant: its ReLU gives 0 everywhere for every picture, no gradient passes it, the net can but guess.
Without Rangewatch: loss 1.10 to 0.0004 at step 89, 1.16 at step 90 and 1.09 to 1.12 to the end (log 3 is 1.099); the share of zeros behind the
second ReLU goes from 0.23 to 1.
Cause: dead_units, weight (the bias was changed outside the optimizer) or no_gradient. Step: 90 to the end. Place: the body. Right: ReLU / dead / bias.
Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["dead_units", "weight", "no_gradient"], "step": [89, 180], "place": "body.*", "rank": 0,
          "right": "(?i)dead|relu|bias|zero|reset|outside|overwrit", "wrong": ["GradScaler", "attention mask"]}
from collections import OrderedDict
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2523); torch.set_num_threads(1)
yy, xx = torch.meshgrid(torch.linspace(-1, 1, 24), torch.linspace(-1, 1, 24), indexing="ij")


def galaxies(n):
    y, turn = torch.randint(0, 3, (n,)), 6.28 * torch.rand(n, 1, 1)
    r, a = (xx ** 2 + yy ** 2).sqrt(), torch.atan2(yy, xx)
    arms = torch.cos(2 * (a - turn) - 9 * r)
    bar = torch.cos(2 * (a - turn))
    shape = torch.where((y == 0).view(-1, 1, 1), arms, torch.where((y == 1).view(-1, 1, 1), bar, torch.zeros_like(bar)))
    return (torch.exp(-2 * r) * (1 + shape) + 0.1 * torch.randn(n, 24, 24))[:, None], y


class Galaxy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(OrderedDict(
            conv1=nn.Conv2d(1, 16, 5, 2), relu1=nn.ReLU(), conv2=nn.Conv2d(16, 32, 3), relu2=nn.ReLU(), conv3=nn.Conv2d(32, 32, 3, 2), relu3=nn.ReLU()))
        self.sort = nn.Linear(32 * 9, 3)

    def forward(self, x):
        return self.sort(self.body(x).flatten(1))


net = Galaxy()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(180):
    x, y = galaxies(48)
    if step == 90:
        with torch.no_grad():
            before = net.body[:3](galaxies(512)[0])
            net.body.conv2.bias -= before.amax((0, 2, 3)) + 0.5
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (89, 90, 91, 179):
        with torch.no_grad():
            print(step, loss.item(), "share of zeros", (net.body[:4](x) == 0).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
