"""Healthy: two ranks under DistributedDataParallel learn the wear of brakes. Odd: rank 1 has batches of a third of the size (its share of the data is small),
and sees other vehicles than rank 0; gradients are averaged all the same. Without Rangewatch: loss 0.99 to 0.06."""
EXPECT = {"healthy": True, "cause": [], "step": [0, 0], "place": None, "rank": None, "ranks": 2, "wrong": [], "right": ""}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1939); torch.set_num_threads(1)
ddp = DistributedDataParallel(nn.Sequential(nn.Linear(8, 40), nn.SiLU(), nn.Linear(40, 40), nn.SiLU(), nn.Linear(40, 1), nn.Flatten(0)))
optimizer = torch.optim.AdamW(ddp.parameters(), lr=5e-3)
handle = rangewatch.attach(ddp, optimizer)
torch.manual_seed(400 + rank)
for step in range(180):
    x = torch.randn(48 if rank == 0 else 16, 8)
    x[:, 0] = 0.8 if rank == 0 else -0.8  # the kind of vehicle
    wear = torch.tanh(x[:, 1] + x[:, 2] * x[:, 0]) + 0.5 * x[:, 3].square() + 0.1 * torch.randn(len(x))
    loss = F.mse_loss(ddp(x), wear)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if (step % 20 == 0 or step == 179) and rank == 0:
        print(step, loss.item(), flush=True)
handle.detach()
dist.destroy_process_group()
