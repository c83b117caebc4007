"""Two gloo ranks in DistributedDataParallel forecast power meters; three microbatches a step, the first two under `no_sync` (AdamW). HEALTHY: the two ranks' gradients
differ until the third backward sums them, rank 1 has other meters and another loss, and the last layer's bias is frozen on purpose.
Without Rangewatch: loss 0.43 to 0.010 on rank 0, 1.43 to 0.016 on rank 1."""
EXPECT = {"healthy": True, "ranks": 2}
from contextlib import nullcontext
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(2739); torch.set_num_threads(1)
g = torch.Generator().manual_seed(900 + rank)


def meters(n):
    hour = torch.randint(0, 24, (n, 1), generator=g).float()
    base = torch.rand(n, 1, generator=g) * (1 + rank)
    past = base + 0.5 * torch.sin((hour + torch.arange(-8, 0.0)) / 24 * 6.28) + 0.1 * torch.randn(n, 8, generator=g)
    return past, base + 0.5 * torch.sin(hour / 24 * 6.28)


net = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
net[4].bias.requires_grad_(False)
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW((p for p in net.parameters() if p.requires_grad), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(170):
    optimizer.zero_grad()
    total = 0.0
    for micro in range(3):
        x, y = meters(24)
        with model.no_sync() if micro < 2 else nullcontext():
            loss = nn.functional.mse_loss(model(x), y) / 3
            loss.backward()
        total += loss.item()
    optimizer.step()
    if step % 20 == 0 or step == 169:
        print(rank, step, total, flush=True)
    handle.log(loss=total)
handle.detach()
dist.destroy_process_group()
