"""Two ranks fit the flow around a plate (a net with tanh, points drawn anew) under DistributedDataParallel. FAULT at step 40: a guard "when the batch
was odd, go back to the weights kept at step 30" is asked on each rank for itself; on rank 1 it holds once, at step 40, on rank 0 it does not. From there on
the copies are not the same, though all gradients are still averaged.
Without Rangewatch: loss 0.65 to 0.08 at step 39, 0.04 at the end; the distance between the weights of the ranks is 0 up to step 39, 0.198 at step 40 and 0.183 to the end.
Causes: replicas (or communication / optimizer). Right: compare / broadcast the weights; decide on all ranks together. Wrong: the rate, GradScaler, mask."""
EXPECT = {"cause": ["replicas", "communication", "optimizer"], "step": [40, 199], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)replica|ranks?|broadcast|synchron|differ", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(2217); torch.set_num_threads(1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
points = torch.Generator().manual_seed(9 + rank)
for step in range(200):
    xy = 4 * torch.rand(96, 2, generator=points) - 2
    r2 = xy.square().sum(1, keepdim=True).clamp(min=0.3)
    flow = torch.cat((1 - (xy[:, :1] ** 2 - xy[:, 1:] ** 2) / (2 * r2 ** 2), -xy[:, :1] * xy[:, 1:] / r2 ** 2), 1).clamp(-2, 2)
    loss = (model(xy) - flow).square().mean()
    optimizer.zero_grad()
    loss.backward()
    odd = rank == 1 and step == 40
    if not odd:
        optimizer.step()
    else:
        with torch.no_grad():
            for p, q in zip(model.parameters(), kept, strict=True):
                p.copy_(q)
    if step == 30:
        kept = [p.detach().clone() for p in model.parameters()]
    handle.log(loss=loss.item())
    if step % 25 == 0 or step in (39, 40, 199):
        mine = torch.cat([p.detach().flatten() for p in model.parameters()])
        zero = mine.clone()
        dist.broadcast(zero, 0)
        print("rank", rank, "step", step, "loss", loss.item(), "distance to rank 0", (mine - zero).norm().item(), flush=True)
handle.detach()
dist.destroy_process_group()
