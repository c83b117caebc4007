"""Two gloo ranks with DDP, three micro-batches a step of which two are under no_sync, clipping after the reduction. The ranks' shards hold different classes,
and rank 1's are noisier, so that the losses of the ranks differ. HEALTHY. Without Rangewatch: loss 1.65 to 0.07 on rank 0, 1.82 to 0.86 on rank 1."""
EXPECT = {"healthy": True, "ranks": 2}
import contextlib
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(636); torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.LayerNorm(48), nn.Dropout(0.3), nn.Linear(48, 48), nn.GELU())
        self.head = nn.Linear(48, 6)

    def forward(self, x):
        return self.head(self.body(x))


kinds = torch.randn(6, 16)
model = nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(700 + rank)
for step in range(160):
    optimizer.zero_grad()
    for micro in range(3):
        # the shards are not alike: rank 1 has three classes that are noisier, and rank 0 the other three
        y = torch.randint(0, 3, (12,)) + 3 * rank
        x = kinds[y] + (0.8 + 1.2 * rank) * torch.randn(12, 16)
        with model.no_sync() if micro < 2 else contextlib.nullcontext():
            loss = F.cross_entropy(model(x), y) / 3
            loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or step == 159:
        print(rank, step, 3 * loss.item(), flush=True)
handle.detach()
dist.destroy_process_group()
