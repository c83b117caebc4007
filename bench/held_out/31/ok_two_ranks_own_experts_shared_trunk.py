"""Expert parallel on two gloo ranks: the trunk is shared (same seed, its gradients averaged by hand), the head is the rank's own (own seed, own task: rank 0 sorts by colour, rank 1 measures an angle). HEALTHY: the heads differ by design,
even their losses are of other kinds; the trunk stays the same on both.
Without Rangewatch: loss 1.39 to 0.22 on rank 0, 4.29 to 0.2 to 0.4 on rank 1; the sums of the trunks are the same throughout."""
EXPECT = {"healthy": True, "ranks": 2}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(134); torch.set_num_threads(1)


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU())
        torch.manual_seed(900 + rank)
        self.own_head = nn.Linear(48, 4 if rank == 0 else 1)

    def forward(self, x):
        return self.own_head(self.trunk(x))


net = Part()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    x = torch.randn(48, 6)
    if rank == 0:
        loss = F.cross_entropy(net(x), (x[:, :4] + x[:, 4:5]).argmax(1))
    else:
        loss = F.mse_loss(net(x)[:, 0], 3 * torch.atan2(x[:, 4], x[:, 5].abs() + 0.3))
    optimizer.zero_grad()
    loss.backward()
    for p in net.trunk.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(rank, step, loss.item(), "trunk", sum(p.sum() for p in net.trunk.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
