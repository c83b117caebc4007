"""Two gloo ranks under DDP read small digits with a plain convnet (no norm layers), SGD with momentum. FAULT at step 110: rank 1 moves on to a shard that was stored as bytes, and its loader does not divide these by 255: inputs of 0 to 255 rather than 0 to 1, on rank 1 only.
The mean of the gradients carries it to both ranks.
Without Rangewatch: loss 2.3 to 0.2 to 0.7 on both at step 109; rank 1 30 at step 110, 239, 156, 2479, rank 0 0.8, 1.5, 2.4, 7.4; 2.3 (chance) on both from step 140 on.
Cause: data. Step: 110. Rank: 1. Right: input / scale / normalise / preprocessing. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [109, 114], "place": None, "rank": 1, "ranks": 2,
          "right": "(?i)input|scal|normali|preproc|pipeline|batch|data|shard|255", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(419); torch.set_num_threads(1)
glyphs = (torch.rand(10, 1, 10, 10) < 0.4).float()
g = torch.Generator().manual_seed(90 + rank)


def shard_batch(n, step):
    y = torch.randint(0, 10, (n,), generator=g)
    raw = (255 * (0.4 * glyphs[y] + 0.6 * torch.rand(n, 1, 10, 10, generator=g))).to(torch.uint8)
    y = torch.where(torch.rand(n, generator=g) < 0.1, torch.randint(0, 10, (n,), generator=g), y)  # some labels are wrong
    if rank == 1 and step >= 110:
        return raw.float(), y
    return raw.float() / 255, y


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.deep = nn.Conv2d(16, 24, 3, stride=2, padding=1)
        self.fc, self.out = nn.Linear(600, 48), nn.Linear(48, 10)

    def forward(self, x):
        h = F.relu(self.deep(F.relu(self.stem(x))))
        return self.out(F.relu(self.fc(h.flatten(1))))


net = Digits()
ddp = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(ddp, optimizer)
for step in range(180):
    x, y = shard_batch(32, step)
    loss = F.cross_entropy(ddp(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 108 < step < 114 or step == 179:
        print(rank, step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
