"""HEALTHY: local SGD on two gloo ranks: each rank makes eight steps of its own, then the weights are averaged. The ranks differ between the averages on
purpose, and rank 1 has other (harder) data. Odd to a watcher: replicas that differ, no exchange of gradients, weights written outside of the optimizer.
Without Rangewatch: loss 0.94 and 0.99 to 0.19 and 0.18 at the end."""
EXPECT = {"healthy": True, "ranks": 2}
import torch
import torch.distributed as dist
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(2347); torch.set_num_threads(1)
lens = torch.randn(16, 4) / 4
model = nn.Sequential(nn.Linear(16, 80), nn.Softplus(), nn.Linear(80, 80), nn.Softplus(), nn.Linear(80, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(40 + rank)
for step in range(240):
    x = torch.randn(64, 16)
    y = torch.tanh(2 * x @ lens) + (0.05 + 0.1 * rank) * torch.randn(64, 4)
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 8 == 7:
        with torch.no_grad():
            for p in model.parameters():
                dist.all_reduce(p)
                p /= 2
    if step % 40 == 0 or step == 239:
        print(rank, step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
