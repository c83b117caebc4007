"""Two gloo ranks, a multi-task net in DistributedDataParallel with the fp16 compression hook and find_unused_parameters: each batch is of one task,
the same on both ranks, so that the other heads have no gradient at that step; data differ by rank, and so do the losses. HEALTHY.
Without Rangewatch: loss 1.62 and 1.62 to 0.16 and 0.29; the heads are the same on both ranks to the last bit."""
EXPECT = {"healthy": True, "ranks": 2}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(736); torch.set_num_threads(1)
TASKS = 3
truth = [torch.randn(24, 5) for _ in range(TASKS)]


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(24, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.heads = nn.ModuleList(nn.Linear(64, 5) for _ in range(TASKS))

    def forward(self, x, task):
        return self.heads[task](self.trunk(x))


model = nn.parallel.DistributedDataParallel(MultiTask(), find_unused_parameters=True)
model.register_comm_hook(None, default_hooks.fp16_compress_hook)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
own = torch.Generator().manual_seed(60 + rank)
for step in range(270):
    task = step % TASKS
    x = torch.randn(48, 24, generator=own) * (1.0 + 0.5 * rank)
    y = (x @ truth[task]).argmax(1)
    loss = F.cross_entropy(model(x, task), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0 or step == 269:
        mine = model.module.heads[0].weight.detach().clone()
        dist.broadcast(mine, 0)
        print(rank, step, loss.item(), "differs", (mine - model.module.heads[0].weight).abs().max().item(), flush=True)
handle.detach()
dist.destroy_process_group()
