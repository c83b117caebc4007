"""Two gloo ranks, a convolutional net with batch norm in DistributedDataParallel. FAULT at step 80: every 80 steps rank 0
saves a checkpoint, and dist.barrier() is indented into the same "if rank == 0": rank 0 waits there for rank 1, which is in the next step already and
waits for rank 0.
Without Rangewatch: losses to 0.83 and 0.82 at step 79; silence for 15 seconds after "rank 0 has saved", then "Timed out waiting 15000ms for recv operation"
on both ranks (rank 0 in the barrier, rank 1 in DDP's broadcast of buffers of step 80).
Report: alan-turing-institute/autocast#386 (a barrier inside "is_global_zero": a hang), pytorch/pytorch#54059 (work and a barrier on one rank alone: all
hangs), pytorch/pytorch#20611 (everything is stuck after the first epoch).
Cause: communication. Step: 80. Right: rank / collective / barrier / hang / timeout. Wrong: rate, GradScaler, mask."""
EXPECT = {"cause": ["communication"], "step": [78, 82], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "collective|barrier|rank|hang|wait|mismatch|timeout|timed out"}
import datetime
import io
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=15))
rank = dist.get_rank()
torch.manual_seed(1024); torch.set_num_threads(1)
LEAVES = 5
leaf = torch.randn(LEAVES, 2, 10, 10)


class LeafNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                                  nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.name = nn.Linear(32, LEAVES)

    def forward(self, x):
        return self.name(self.body(x).mean((2, 3)))


def pictures(n, generator):
    y = torch.randint(0, LEAVES, (n,), generator=generator)
    return leaf[y] + 1.5 * torch.randn(n, 2, 10, 10, generator=generator), y


model = DistributedDataParallel(LeafNet())
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
own = torch.Generator().manual_seed(800 + rank)
for step in range(200):
    if step > 0 and step % 80 == 0 and rank == 0:
        torch.save(model.module.state_dict(), io.BytesIO())
        print("rank 0 has saved", flush=True)
        dist.barrier()  # meant for both ranks
    x, y = pictures(32, own)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (79, 81):
        print(rank, step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
