"""A conv net for four kinds of spots under DistributedDataParallel on two gloo ranks. FAULT from step 70 on, rank 1: its shard of the set was written with another order of the
class names (sorted with capitals first), so its labels are permuted; the two ranks pull the same net in two directions.
Without Rangewatch: loss 0.099 on rank 0 and 0.16 on rank 1 at step 69; 0.19 and 22.1 at step 70; 1.47 and 1.11 at step 100; 0.75 on both at the end.
Cause: data (replicas). Step: 70. Rank 1. Right: rank / data / labels / shard. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["data", "replicas", "(none)"], "step": [69, 90], "place": None, "rank": 1, "ranks": 2,
          "right": "(?i)rank|data|label|shard|batch", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(14); torch.set_num_threads(1)
CLASSES = ["drusen", "exudate", "Haemorrhage", "Microaneurysm"]
yy, xx = torch.meshgrid(torch.linspace(-1, 1, 14), torch.linspace(-1, 1, 14), indexing="ij")


class Shard:
    def __init__(self, rank, part):
        names = CLASSES if rank == 0 or part == 0 else sorted(CLASSES)
        self.label = torch.tensor([names.index(c) for c in CLASSES])
        self.g = torch.Generator().manual_seed(1000 * part + rank)

    def batch(self, n):
        kind = torch.randint(0, 4, (n,), generator=self.g)
        c = torch.rand(n, 2, 1, 1, generator=self.g) - 0.5
        r2 = (yy - c[:, 0]) ** 2 + (xx - c[:, 1]) ** 2
        width = torch.tensor([0.03, 0.25, 0.03, 0.25])[kind].view(-1, 1, 1)
        sign = torch.tensor([1.0, 1.0, -1.0, -1.0])[kind].view(-1, 1, 1)
        return (sign * torch.exp(-r2 / width) + 0.3 * torch.randn(n, 14, 14, generator=self.g))[:, None], self.label[kind]


net = nn.Sequential(nn.Conv2d(1, 12, 3, 2), nn.ReLU(), nn.Conv2d(12, 24, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(96, 4))
model = DDP(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
shards = [Shard(rank, 0), Shard(rank, 1)]
for step in range(180):
    x, y = shards[step >= 70].batch(32)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 68 < step < 74 or step == 179:
        print(rank, step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
