"""Local SGD on two gloo ranks: each rank takes five steps alone, then weights and momenta are averaged (all_reduce by hand). A gated MLP on a noisy parity-like task. HEALTHY: the ranks' weights differ between two averagings by design
and are the same after each fifth step.
Without Rangewatch: loss 1.07 to 0.57 on rank 0, 1.02 to 0.51 on rank 1; sums of the weights the same at each fifth step."""
EXPECT = {"healthy": True, "ranks": 2}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(133); torch.set_num_threads(1)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.value, self.out = nn.Linear(10, 48), nn.Linear(10, 48), nn.Linear(48, 3)

    def forward(self, x):
        return self.out(F.silu(self.gate(x)) * self.value(x))


net = Gated()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.8)
handle = rangewatch.attach(net, optimizer)
g = torch.Generator().manual_seed(400 + rank)
for step in range(220):
    x = torch.randn(48, 10, generator=g)
    y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 0).long()
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 4:
        with torch.no_grad():
            for p in net.parameters():
                for t in (p, optimizer.state[p]["momentum_buffer"]):
                    dist.all_reduce(t)
                    t /= world
    if step % 20 == 19:
        print(rank, step, loss.item(), "weights", sum(p.sum() for p in net.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
