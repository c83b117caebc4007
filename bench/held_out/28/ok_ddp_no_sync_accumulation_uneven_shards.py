"""Two gloo ranks under DistributedDataParallel, three microbatches a step with no_sync on all but the last; the shards differ: rank 1 has the harder half of the set and twice the loss. HEALTHY.
Without Rangewatch: loss 0.61 to 0.017 on rank 0, 1.60 to 0.17 on rank 1; the sums of the weights are equal throughout."""
EXPECT = {"healthy": True, "ranks": 2}
import contextlib
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(29); torch.set_num_threads(1)
model = DDP(nn.Sequential(nn.Linear(6, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
g = torch.Generator().manual_seed(7 + rank)
for step in range(180):
    optimizer.zero_grad()
    total = 0.0
    for micro in range(3):
        x = torch.randn(32, 6, generator=g) * (1.0 + 0.4 * rank)
        y = torch.sin(x[:, :1]) * x[:, 1:2] + 0.3 * x[:, 2:3] + (0.1 + 0.2 * rank) * torch.randn(32, 1, generator=g)
        with contextlib.nullcontext() if micro == 2 else model.no_sync():
            loss = nn.functional.mse_loss(model(x), y) / 3
            loss.backward()
        total += loss.item()
    optimizer.step()
    if step % 20 == 0 or step == 179:
        print(rank, step, total, "sum", sum(p.sum() for p in model.parameters()).item(), flush=True)
    handle.log(loss=total)
handle.detach()
dist.destroy_process_group()
