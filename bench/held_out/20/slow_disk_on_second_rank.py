"""Two gloo ranks with DDP learn to name minerals by their X-ray peaks. FAULT at step 70: the disk of rank 1 has become slow, each of its batches takes
60 ms; rank 0 waits for it in each all-reduce.
Without Rangewatch: 8 to 18 ms a step before, 65 to 73 ms after; the loss falls as ever, 2.18 to 0.0046.
Cause: none that ruins the figures: a straggler (or data loading, communication, hardware). Step: 70 on. Rank: 1. Right: slow / wait / loader.
Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["straggler", "communication", "hardware", "data", "", "(none)"], "step": [69, 200], "place": None, "rank": 1, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "(?i)slow|wait|loader|straggl|disk|time", "least": "info"}
import os
import time
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(2006)
peaks = torch.rand(8, 100).pow(8)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(100, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 8)))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
own = torch.Generator().manual_seed(10 + rank)
for step in range(200):
    begun = time.perf_counter()
    if rank == 1 and step >= 70:
        time.sleep(0.06)
    y = torch.randint(0, 8, (32,), generator=own)
    x = peaks[y] * (0.5 + torch.rand(32, 1, generator=own)) + 0.15 * torch.randn(32, 100, generator=own)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and (step % 20 == 0 or step in (69, 71, 199)):
        print(step, loss.item(), "ms", 1000 * (time.perf_counter() - begun), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
