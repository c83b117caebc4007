"""Two gloo ranks, each with half of the data (rank 0 sees the shapes 0 to 3, rank 1 the shapes 4 to 7), a patch MLP with the same start, SGD with momentum. FAULT from step 0: the
script opens a process group and shards the data, but there is neither DistributedDataParallel nor an all_reduce: nobody averages the gradients and each rank trains a net of its own.
Without Rangewatch: the loss of each rank falls from 2.1 to 0.01 and below; on all shapes the nets of the ranks are right in 50 to 53 per cent only; the sums of their weights part from step 0 on.
Cause: replicas (communication). Step: 0. Right: DistributedDataParallel / all_reduce / replicas differ. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["replicas", "communication"], "step": [0, 40], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)all.?reduce|DistributedDataParallel|DDP|averag|replica|synchroni|broadcast",
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3311); torch.set_num_threads(1)
shapes = torch.rand(8, 8, 8).round()
g = torch.Generator().manual_seed(20 + rank)


class PatchMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(1, 16, 4, 4)
        self.mix = nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 64), nn.Mish(), nn.Linear(64, 8))

    def forward(self, x):
        return self.mix(self.patch(x))


def shard(n, low, high):
    y = torch.randint(low, high, (n,), generator=g)
    return (shapes[y] + 0.5 * torch.randn(n, 8, 8, generator=g))[:, None], y


model = PatchMLP()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
per_rank = 8 // world
for step in range(160):
    x, y = shard(32, rank * per_rank, (rank + 1) * per_rank)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 159:
        print(rank, step, loss.item(), "sum of weights", sum(p.sum() for p in model.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
with torch.no_grad():
    x, y = shard(400, 0, 8)
    print(rank, "right on all shapes", (model(x).argmax(1) == y).float().mean().item(), flush=True)
dist.destroy_process_group()
