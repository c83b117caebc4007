"""Two gloo ranks that foretell the time of a taxi ride, DistributedDataParallel, four microbatches a step. FAULT from the start: all microbatches run under `no_sync()`: the
test for the last one compares with 4 where the index goes to 3. No gradient is ever reduced, and the two nets part.
Without Rangewatch: loss 2.7 and 2.3 to 0.15 and 0.26; the sums of the weights differ by 0.017 after the first step, by 0.19 at step 20, by 2.4 at step 100.
Cause: replicas or communication. Step: any. Right: no_sync / all_reduce / replicas. Wrong: GradScaler, lower the learning rate."""
EXPECT = {"cause": ["replicas", "communication"], "step": [0, 160], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)no_sync|all_?reduce|DistributedDataParallel|DDP|replica|reduc|rank|sync", "wrong": ["GradScaler", "[Ll]ower the learning rate"]}
import contextlib
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(3012); torch.set_num_threads(1)
MICRO = 4
net = nn.Sequential(nn.Linear(7, 80), nn.SiLU(), nn.Linear(80, 40), nn.SiLU(), nn.Linear(40, 1))
ddp = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(net, optimizer)
g = torch.Generator().manual_seed(60 + rank)


def rides(n):
    x = torch.rand(n, 7, generator=g) * 2 - 1
    far = (x[:, 0] - x[:, 2]).abs() + (x[:, 1] - x[:, 3]).abs()
    y = far * (1 + 0.5 * torch.sin(3 * x[:, 4])) + 0.2 * x[:, 5] + 0.1 * torch.randn(n, generator=g)
    return x, y[:, None]


for step in range(160):
    optimizer.zero_grad()
    total = 0.0
    for micro in range(MICRO):
        last = micro == MICRO
        with contextlib.nullcontext() if last else ddp.no_sync():
            x, y = rides(16)
            loss = F.mse_loss(ddp(x), y) / MICRO
            loss.backward()
            total += loss.item()
    optimizer.step()
    if step % 20 == 0 or step == 159:
        print(rank, step, total, "sum of weights", sum(p.sum() for p in net.parameters()).item(), flush=True)
    handle.log(loss=total)
handle.detach()
dist.destroy_process_group()
