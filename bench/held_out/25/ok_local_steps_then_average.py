"""Two gloo ranks in local SGD: each takes eight steps of its own, then the weights of both are averaged, on purpose. HEALTHY: between the averages the
replicas differ, and no gradient is ever reduced.
Without Rangewatch: loss 0.52 to 0.054 on rank 0, 0.53 to 0.075 on rank 1."""
EXPECT = {"healthy": True, "ranks": 2}
import torch
import torch.distributed as dist
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(2533); torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(10, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
handle = rangewatch.attach(net, optimizer)
g = torch.Generator().manual_seed(31 + rank)
for step in range(200):
    x = torch.randn(64, 10, generator=g)
    y = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3].tanh()
    loss = nn.functional.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 8 == 7:
        with torch.no_grad():
            for p in net.parameters():
                dist.all_reduce(p)
                p /= 2
    if step % 20 == 0 or step == 199:
        print(rank, step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
