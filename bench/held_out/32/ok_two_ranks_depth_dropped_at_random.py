"""Two gloo ranks under DDP with `find_unused_parameters=True` and stochastic depth: each rank leaves out residual blocks at random, with bfloat16 autocast, NAdam.
HEALTHY: on many steps a block has no gradient on one rank (or zero on both) and gets the other's half from the all-reduce; the ranks' losses differ as each drops other blocks; the replicas stay equal.
Without Rangewatch: loss 1.98 to 0.3 on both ranks, the sums of the weights are the same."""
EXPECT = {"healthy": True, "ranks": 2}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(425); torch.set_num_threads(1)
g = torch.Generator().manual_seed(40 + rank)
coef = torch.randn(10, 6)


def cells(n):
    x = torch.randn(n, 10, generator=g)
    return x, ((x @ coef).tanh() + 0.5 * (x.roll(1, 1) @ coef)).argmax(1)


class DropBlock(nn.Module):
    def __init__(self, keep):
        super().__init__()
        self.keep, self.norm = keep, nn.LayerNorm(40)
        self.up, self.down = nn.Linear(40, 80), nn.Linear(80, 40)

    def forward(self, h):
        if self.training and torch.rand((), generator=g) > self.keep:
            return h
        return h + self.down(F.gelu(self.up(self.norm(h)))) / (self.keep if self.training else 1.0)


net = nn.Sequential(nn.Linear(10, 40), *[DropBlock(1 - 0.12 * i) for i in range(4)], nn.LayerNorm(40), nn.Linear(40, 6))
ddp = nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
optimizer = torch.optim.NAdam(ddp.parameters(), lr=2e-3)
handle = rangewatch.attach(ddp, optimizer)
for step in range(200):
    x, y = cells(64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(ddp(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(rank, step, loss.item(), "sum of weights", sum(p.sum() for p in net.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
