"""Two ranks learn to tell the sex of chicks by their voice, with DistributedDataParallel. FAULT at step 0: each rank makes a process group of itself alone
(a leftover of a two-machine setup) and DDP averages over that, so that nothing is ever averaged; the copies drift apart from the first update on.
Without Rangewatch: the weights of the two ranks differ by 0.005 at step 0, by 0.24 at step 20 and by 0.57 at the end; loss 0.67 to 0.22.
Cause: communication or replicas. Step: from 0 on, when first compared. Right: process_group / replicas / all-reduce. Wrong: rate, GradScaler, mask."""
EXPECT = {"cause": ["communication", "replicas"], "step": [0, 110], "place": None, "rank": None, "ranks": 2,
          "wrong": ["(?i)lower the learning rate", "GradScaler", "(?i)attention mask"],
          "right": "(?i)group|replica|all.?reduce|averag|synchron|\\bddp\\b|DistributedDataParallel|wrap"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1932); torch.set_num_threads(1)
groups = [dist.new_group([r]) for r in range(dist.get_world_size())]

net = nn.Sequential(nn.Linear(40, 48), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
ddp = DistributedDataParallel(net, process_group=groups[rank])
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
handle = rangewatch.attach(ddp, optimizer)
torch.manual_seed(300 + rank)


def voices(n):
    y = torch.randint(0, 2, (n,))
    pitch = 3.0 + 1.2 * y[:, None] + 0.4 * torch.randn(n, 1)
    return torch.sin(6.2832 * pitch * torch.arange(40) / 40) + 0.3 * torch.randn(n, 40), y


for step in range(180):
    x, y = voices(24)
    loss = F.cross_entropy(ddp(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or step == 179:
        weight = net[3].weight.detach()
        both = [torch.zeros_like(weight) for _ in range(2)]
        dist.all_gather(both, weight)
        if rank == 0:
            print(step, loss.item(), "largest difference of a weight", (both[0] - both[1]).abs().max().item(), flush=True)
handle.detach()
dist.destroy_process_group()
