"""A conv and attention hybrid that counts dots, in float16 autocast with a GradScaler. FAULT at step 125: the projection of block 1 is overwritten by a merge of an adapter
with a factor of 2e5 where 2e-1 was meant; its outputs exceed 65504, the loss is NaN, and the scaler skips each step from then on.
Without Rangewatch: loss 3.3 to 0.46 at step 124, NaN from step 125 on; the scale falls from 4096 to 1e-19.
Cause: weight (the layer overwritten) or forward_arithmetic (overflow of float16). Step: 125. Place: block 1. Right: weight / overflow / float16.
Wrong: lower the learning rate, attention mask."""
EXPECT = {"cause": ["weight", "forward_arithmetic", "hardware"], "step": [124, 127], "place": "blocks\\.1.*", "rank": 0,
          "right": "(?i)weight|overflow|float16|65504|checkpoint", "wrong": ["[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2409); torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm, self.project, self.back = nn.LayerNorm(c), nn.Linear(c, 2 * c), nn.Linear(2 * c, c)

    def forward(self, h):
        return h + self.back(F.silu(self.project(self.norm(h))))


class Counter(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.stem = nn.Conv2d(1, c, 4, stride=4)
        self.blocks = nn.ModuleList(Block(c) for _ in range(3))
        self.pool, self.count = nn.Linear(c, 1), nn.Linear(c, 7)

    def forward(self, x):
        h = self.stem(x).flatten(2).transpose(1, 2)
        for b in self.blocks:
            h = b(h)
        return self.count((h * self.pool(h).sigmoid()).sum(1))


def dots(n):
    k = torch.randint(0, 7, (n,))
    order = torch.rand(n, 256).argsort(1).argsort(1)
    return (order < k[:, None]).float().view(n, 1, 16, 16), k


model = Counter()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 12)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(200):
    x, k = dots(48)
    if step == 125:
        with torch.no_grad():
            w = model.blocks[1].project.weight
            w.add_(torch.randn(64, 4) @ torch.randn(4, 32), alpha=2e5)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(x), k)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 15 == 0 or 122 < step < 129 or step == 199:
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
