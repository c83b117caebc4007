"""Bottlenecks of eight units are trained in a frozen convolutional net, by plain SGD. FAULT from the start: the rate is 1000 (1e-3 was meant; it was written
as 1e3).
Without Rangewatch: loss 2.47 at step 0, 7.9e11 at step 1, NaN from step 2 on.
Variant of: rates: adapters_with_lr_1000.
Cause: learning_rate. Step: 0 to 5. Right: learning rate / lr. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 6], "place": None, "rank": None,
          "wrong": ["GradScaler", "attention mask"],
          "right": "[Ll]earning rate|\\blr\\b"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1123); torch.set_num_threads(1)
LEAVES = 6
vein = torch.randn(2 * LEAVES, 3, 10, 10)


class Bottleneck(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down, self.up = nn.Conv2d(width, 8, 1), nn.Conv2d(8, width, 1)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x):
        return x + self.up(F.gelu(self.down(x)))


class LeafNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 24, 3, padding=1), nn.Conv2d(24, 24, 3, padding=1)])
        self.bottlenecks = nn.ModuleList(Bottleneck(24) for _ in range(3))
        self.leaf = nn.Linear(24, LEAVES)

    def forward(self, x):
        for conv, bottleneck in zip(self.convs, self.bottlenecks):
            x = bottleneck(F.relu(conv(x)))
        return self.leaf(x.mean((2, 3)))


def leaves(n, first):
    leaf = torch.randint(0, LEAVES, (n,))
    return vein[first + leaf] + torch.randn(n, 3, 10, 10), leaf


model = LeafNet()
early = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(80):  # other leaves
    x, leaf = leaves(32, 0)
    early.zero_grad()
    F.cross_entropy(model(x), leaf).backward()
    early.step()
model.requires_grad_(False)
for each in model.bottlenecks:
    each.requires_grad_(True)
optimizer = torch.optim.SGD(model.bottlenecks.parameters(), lr=1e3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, leaf = leaves(32, LEAVES)
    loss = F.cross_entropy(model(x), leaf)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step < 8:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
