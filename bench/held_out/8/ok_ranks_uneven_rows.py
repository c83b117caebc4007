"""Two gloo ranks with DDP, a recommender of songs: rank 0 has about six times as many rows in a batch as rank 1 (sharded by country), so each rank's
sum of losses is divided by the mean number of rows over the ranks, which is right; the logged losses of the ranks differ widely. HEALTHY.
Without Rangewatch: rank 0: loss about 1.1 to 0.01, rank 1: 0.2 to 0.05; 100 to 139 rows against 12 to 27; the tables are the same on both ranks."""
EXPECT = {"healthy": True, "ranks": 2}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(830); torch.set_num_threads(1)
LISTENERS, SONGS = 40, 40
taste, style = torch.randn(LISTENERS, 4), torch.randn(SONGS, 4)


class Songs(nn.Module):
    def __init__(self):
        super().__init__()
        self.listeners, self.songs = nn.Embedding(LISTENERS, 20), nn.Embedding(SONGS, 20)
        self.mlp = nn.Sequential(nn.Linear(60, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, u, s):
        u, s = self.listeners(u), self.songs(s)
        return self.mlp(torch.cat([u, s, u * s], 1)).squeeze(1)


model = nn.parallel.DistributedDataParallel(Songs())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
handle = rangewatch.attach(model, optimizer)
own = torch.Generator().manual_seed(90 + rank)
for step in range(260):
    n = int(torch.randint(100, 140, (1,), generator=own)) if rank == 0 else int(torch.randint(12, 28, (1,), generator=own))
    u = torch.randint(0, 20, (n,), generator=own) + 20 * rank
    s = torch.randint(0, SONGS, (n,), generator=own)
    y = ((taste[u] * style[s]).sum(1) > 0.5 - rank).float()
    rows = torch.tensor(float(n))
    dist.all_reduce(rows)
    loss = F.binary_cross_entropy_with_logits(model(u, s), y, reduction="sum") * world / rows
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or step == 259:
        other = model.module.songs.weight.detach().clone()
        dist.broadcast(other, 0)
        print(rank, step, loss.item(), "rows", n, "differs", (other - model.module.songs.weight).abs().max().item(), flush=True)
handle.detach()
dist.destroy_process_group()
