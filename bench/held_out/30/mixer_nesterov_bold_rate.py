"""A small MLP mixer that tells five textures apart, SGD with Nesterov momentum. FAULT from the start: the learning rate is 1.5 (with momentum 0.9 that is 15 in effect), taken
over from a linear model.
Without Rangewatch: loss 1.64, 1.75, 1.39, 3.31 and 336 in the steps 0 to 4, NaN at step 20 and to the end.
Cause: learning_rate or optimizer. Step: any. Right: lower the learning rate / warm-up. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [0, 200], "place": None, "rank": None,
          "right": "(?i)learning.rate|\\blr\\b|warm", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3003); torch.set_num_threads(1)
yy, xx = torch.meshgrid(torch.arange(16.), torch.arange(16.), indexing="ij")


class Block(nn.Module):
    def __init__(self, places, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(places, 32), nn.GELU(), nn.Linear(32, places))
        self.within = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, h):
        h = h + self.across(self.norm1(h).transpose(1, 2)).transpose(1, 2)
        return h + self.within(self.norm2(h))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(1, 32, 4, 4)
        self.blocks = nn.Sequential(Block(16, 32), Block(16, 32))
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.blocks(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


def textures(n):
    y = torch.randint(0, 5, (n,))
    a = (y * 0.63).view(-1, 1, 1)
    phase = 6.28 * torch.rand(n, 1, 1)
    x = torch.sin(1.2 * (xx * torch.cos(a) + yy * torch.sin(a)) + phase) + 0.4 * torch.randn(n, 16, 16)
    return x[:, None], y


net = Mixer()
optimizer = torch.optim.SGD(net.parameters(), lr=1.5, momentum=0.9, nesterov=True)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    x, y = textures(48)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step < 5 or step % 20 == 0 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
