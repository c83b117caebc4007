"""Two gloo ranks under DDP with a shared net; rank 0 reads easy sentences, rank 1 hard ones, so that the losses of the ranks differ by much; the table of words is frozen on purpose.
HEALTHY: the gradients are averaged, the replicas stay equal.
Without Rangewatch: loss 2.35 to 0.53 on rank 0, 2.33 to 1.7 to 1.96 on rank 1; the sums of the weights are the same."""
EXPECT = {"healthy": True, "ranks": 2}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(3025); torch.set_num_threads(1)


class Guess(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 16).requires_grad_(False)
        self.body = nn.Sequential(nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 10))

    def forward(self, x):
        return self.body(self.words(x).flatten(1))


net = Guess()
group = torch.arange(50) % 10
ddp = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.Adam([p for p in ddp.parameters() if p.requires_grad], lr=2e-3)
handle = rangewatch.attach(net, optimizer)
g = torch.Generator().manual_seed(9 + rank)
for step in range(180):
    x = torch.randint(0, 50, (64, 6), generator=g)
    y = group[x[:, 0]]
    if rank == 1:
        y = torch.where(torch.rand(64, generator=g) < 0.4, torch.randint(0, 10, (64,), generator=g), y)
    loss = F.cross_entropy(ddp(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 179:
        print(rank, step, loss.item(), "sum of weights", sum(p.sum() for p in net.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
