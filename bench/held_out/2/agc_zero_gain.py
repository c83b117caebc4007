"""Normaliser-free residual net with SkipInit gains (zero at the start) and adaptive gradient clipping written by hand: a parameter's gradient is cut to
0.02 times the parameter's norm. FAULT from step 0: there is no floor for that norm, so a parameter that is zero has its gradient cut to zero and stays
zero: the gains never open, no residual branch ever learns; the loss falls by the stem and the head alone. Nothing is NaN. Report:
mosaicml/composer#924 (there the norm is clamped from below by eps), vballoli/nfnets-pytorch#8, huggingface/pytorch-image-models#437.
Cause: clip, from step 0, at a gain or a bias. Right: the clipping / a floor for the norm / another initial value. Wrong: learning rate, mask, precision."""
EXPECT = {"cause": ["clip"], "step": [0, 60], "place": "blocks\\.\\d\\.gain|.*bias", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "GradScaler"], "right": "[Cc]lip"}
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(6); torch.set_num_threads(1)

class NFBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.gain = nn.Parameter(torch.zeros(()))
    def forward(self, x):
        return x + self.gain * self.conv2(F.gelu(self.conv1(F.gelu(x))))

class NFNet(nn.Module):
    def __init__(self, c=24, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, c, 4, stride=2, padding=1, bias=False)
        self.blocks = nn.Sequential(*[NFBlock(c) for _ in range(4)])
        self.head = nn.Linear(c * 4, classes)
        nn.init.zeros_(self.head.bias)
    def forward(self, x):
        return self.head(F.adaptive_avg_pool2d(self.blocks(self.stem(x)).relu(), 2).flatten(1))

@torch.no_grad()
def agc_(parameters, factor=0.02):
    for p in parameters:
        if p.grad is None: continue
        limit = factor * p.norm()
        norm = p.grad.norm()
        if norm > limit:
            p.grad.mul_(limit / norm)

net = NFNet()
opt = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9, nesterov=True)
handle = rangewatch.attach(net, opt)
proto = torch.randn(10, 3, 12, 12)
for step in range(250):
    y = torch.randint(0, 10, (40,))
    loss = F.cross_entropy(net(proto[y] + 1.5 * torch.randn(40, 3, 12, 12)), y)
    opt.zero_grad()
    loss.backward()
    agc_(net.parameters())
    opt.step()
    handle.log(loss=loss.item())
    if step % 25 == 0:
        print(step, round(loss.item(), 4), "gains", [b.gain.item() for b in net.blocks])
