"""Two ranks with DDP estimate the energy of a particle shower from calorimeter cells; float16 autocast, and a loss scale of 4096 multiplied in by hand and
divided out again, with no look for infinities. FAULT at step 105: rank 1 reads one true event of a very high energy; the loss is finite, but its scaled
gradient is beyond 65504 in the float16 backward of rank 1 alone: inf, and the all-reduce carries it to both. Both step with it.
Without Rangewatch: loss 1.3 to 0.0011 at step 104; at step 105 25,265 on rank 1 and 0.0011 on rank 0, the gradient is inf on both, the loss NaN from step
106 on.
Cause: backward_arithmetic or loss_scale (or the event in the data). Step: 105, rank 1. Right: float16 / overflow / GradScaler / scale / skip. Wrong:
attention mask, a broken network."""
EXPECT = {"cause": ["backward_arithmetic", "loss_scale", "data"], "step": [104, 107], "place": None, "rank": 1, "ranks": 2,
          "wrong": ["attention mask", "(?i)\\bnccl\\b", "(?i)all.?reduce by hand"],
          "right": "(?i)float16|fp16|half|overflow|scal|65504|non-finite|outlier|batch"}
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(1801)


class Calorimeter(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.Linear(60, 64)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
        self.energy = nn.Linear(64, 1)

    def forward(self, x):
        h = F.gelu(self.cells(x))
        for layer in self.layers:
            h = h + F.gelu(layer(h))
        return self.energy(h)[:, 0]


def events(n):
    energy = 0.5 + torch.rand(n, 1)
    profile = torch.exp(-(torch.arange(60) - 10 - 25 * torch.rand(n, 1)) ** 2 / 60)
    return energy * profile + 0.02 * torch.randn(n, 60), energy[:, 0]


SCALE = 4096.0
model = DistributedDataParallel(Calorimeter())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(77 + rank)
for step in range(200):
    x, y = events(32)
    if step == 105 and rank == 1:
        y[3] = 900.0
    with torch.autocast("cpu", torch.float16):
        estimate = model(x)
    loss = F.mse_loss(estimate.float(), y)
    optimizer.zero_grad()
    (loss * SCALE).backward()
    for p in model.parameters():
        p.grad /= SCALE
    optimizer.step()
    if step % 25 == 0 or 103 < step < 108 or step == 199:
        print(rank, step, loss.item(), "gradient", model.module.energy.weight.grad.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
