"""Two gloo ranks in DistributedDataParallel: a residual net maps eight strain gauges of a glacier to its speed (Adamax), each rank reads its own shard.
FAULT at step 90: rank 1's shard has a gauge that came loose: column 5 is NaN in all its rows from there on. Rank 0's own data stay right; its weights are NaN once the gradients are averaged.
Without Rangewatch: l1 0.75 to 0.27 on both ranks at step 89; at step 90 rank 1 has NaN and rank 0 0.29, from step 91 on both have NaN.
Cause: data on rank 1. Step: 90. Right: the inputs of rank 1. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [89, 93], "place": None, "rank": 1, "ranks": 2,
          "right": r"(?i)input|data|batch|shard|rank 1|missing", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo", init_method="env://")
rank = dist.get_rank()
torch.set_num_threads(1)
torch.manual_seed(12)
truth = torch.randn(8, 1)
draw = torch.Generator().manual_seed(500 + rank)


def gauges(n, loose):
    x = torch.randn(n, 8, generator=draw)
    speed = torch.tanh(x @ truth) + 0.2 * x[:, :1] * x[:, 3:4] + 0.05 * torch.randn(n, 1, generator=draw)
    if loose:
        x[:, 5] = float("nan")
    return x, speed


class Ice(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.strain = nn.Linear(8, width)
        self.shear = nn.ModuleList([nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Softplus(), nn.Linear(width, width)) for _ in range(2)])
        self.speed = nn.Linear(width, 1)

    def forward(self, x):
        h = self.strain(x)
        for layer in self.shear:
            h = h + layer(h)
        return self.speed(h)


ice = DistributedDataParallel(Ice())
opt = torch.optim.Adamax(ice.parameters(), lr=3e-3)
handle = rangewatch.attach(ice, opt)
for step in range(150):
    x, speed = gauges(32, loose=rank == 1 and step >= 90)
    loss = F.l1_loss(ice(x), speed)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0 or 88 < step < 93:
        print(f"rank {rank} step {step} l1 {loss.item():.4f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
