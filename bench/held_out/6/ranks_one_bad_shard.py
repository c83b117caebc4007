"""Two gloo ranks with DDP, a small model of the weather. FAULT at step 85 on rank 1 alone: one file of its shard has a hole of NaN. Its loss is NaN, rank
0's is 0.078; after the reduction both have gradients of NaN. Without Rangewatch: losses 0.34 and 0.27 to 0.105 and 0.083 at step 84; rank 1 NaN at
step 85, both NaN from step 86 on.
Report: ecmwf/WeatherGenerator#2718 (a NaN on ranks 1 to N-1 with a finite loss on rank 0 poisons the all-reduce).
Cause: data. Step: 85. Rank: 1. Right: the batch / input of rank 1. Wrong: learning rate, attention mask, GradScaler."""
EXPECT = {"cause": ["data"], "step": [85, 86], "place": None, "rank": 1, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "batch|input|data|sample|shard|rank 1"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(624); torch.set_num_threads(1)


class Weather(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Conv2d(3, 16, 3, padding=1)
        self.mix = nn.Sequential(nn.GELU(), nn.Conv2d(16, 16, 3, padding=1), nn.GELU())
        self.decode = nn.Conv2d(16, 3, 1)

    def forward(self, x):
        return x + self.decode(self.mix(self.encode(x)))


model = nn.parallel.DistributedDataParallel(Weather())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(500 + rank)
for step in range(140):
    low = torch.randn(8, 3, 4, 4)
    field = F.interpolate(low, size=12, mode="bilinear")
    x = field + 0.1 * torch.randn_like(field)
    if step == 85 and rank == 1:
        x[2, 1, 5:7, 3] = float("nan")  # a hole in one file of this rank's shard
    loss = F.mse_loss(model(x), field.roll(1, -1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 83 < step < 88:
        print(rank, step, loss.item(), flush=True)
handle.detach()
dist.destroy_process_group()
