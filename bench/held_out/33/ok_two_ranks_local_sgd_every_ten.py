"""Two gloo ranks train a small ConvNet by local SGD: each steps alone on its own shard and every tenth step the weights (not the gradients) are averaged, after a hundred steps of ordinary gradient averaging.
HEALTHY: between two averagings the replicas differ, by design; behind each averaging they are equal.
Without Rangewatch: loss 1.4 to 0.11 on both ranks; the sums of the weights are equal at steps 119, 129, ..., and at the end."""
EXPECT = {"healthy": True, "ranks": 2}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3328); torch.set_num_threads(1)
textures = torch.randn(4, 3, 8, 8)
g = torch.Generator().manual_seed(60 + rank)
net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 16, 3, 2), nn.SiLU(), nn.Flatten(), nn.Linear(144, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
handle = rangewatch.attach(net, optimizer)


def average(tensors):
    for t in tensors:
        dist.all_reduce(t)
        t /= world


for step in range(180):
    y = torch.randint(0, 4, (24,), generator=g)
    x = 0.5 * textures[y] + torch.randn(24, 3, 8, 8, generator=g)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    if step < 100:
        average([p.grad for p in net.parameters()])
    optimizer.step()
    if step >= 100 and step % 10 == 9:
        average([p.data for p in net.parameters()])
    if step % 20 in (0, 19):
        print(rank, step, loss.item(), "sum of weights", sum(p.sum() for p in net.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
