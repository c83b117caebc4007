"""A net of depthwise convolutions tells six kinds of leaves apart; pictures are centred with the mean of each colour (about 118) and divided by 40. FAULT at step 120:
a new version of the loader divides by 40 but no longer takes the mean off: all inputs are shifted by three.
Without Rangewatch: loss 2.29 to 0.005 at step 119, 19.2 at step 120, 6.0, 1.2, and 0.24 to 1.9 to the end.
Causes: data. Right: the input / its normalisation changed. Wrong: GradScaler, attention mask, clip."""
EXPECT = {"cause": ["data"], "step": [119, 150], "place": None, "rank": 0,
          "right": "(?i)data|input|batch|normali|mean|preprocess", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2224); torch.set_num_threads(1)
MEAN = torch.tensor([110.0, 128.0, 116.0]).view(3, 1, 1)
colour, stripe = 18 * torch.randn(6, 3, 1, 1), torch.randint(1, 6, (6, 2))
grid = torch.arange(20.0) / 20 * 6.2832


class Leaves(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, 2, 1)
        self.depth = nn.ModuleList(nn.Conv2d(24, 24, 5, padding=2, groups=24) for _ in range(3))
        self.point = nn.ModuleList(nn.Conv2d(24, 24, 1) for _ in range(3))
        self.kind = nn.Linear(24 * 25, 6)

    def forward(self, x):
        x = F.relu(self.stem(x))
        for d, p in zip(self.depth, self.point, strict=True):
            x = x + F.relu(p(d(x)))
        return self.kind(F.avg_pool2d(x, 2).flatten(1))


def photographs(n):
    y = torch.randint(0, 6, (n,))
    wave = torch.sin(stripe[y, 0, None, None] * grid[:, None] + stripe[y, 1, None, None] * grid[None] + 6.2832 * torch.rand(n, 1, 1))
    return (MEAN + colour[y] + 20 * wave[:, None] + 30 * torch.randn(n, 3, 20, 20)).clamp(0, 255), y


model = Leaves()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = photographs(32)
    x = (x - MEAN) / 40 if step < 120 else x / 40
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 118 < step < 124 or step == 199:
        print(step, loss.item(), flush=True)
handle.detach()
