"""Two gloo ranks with DDP and a synchronised BatchNorm written by hand: the variance is E[x^2] - E[x]^2, both averaged over the ranks. FAULT at step
110: a station delivers its pressure in pascal (101,325, not 0 to 1) for channel 2, with next to no spread in the batch: the difference of two
numbers of 1e10 is negative by rounding, rsqrt of it NaN. Without Rangewatch: losses 0.5 and 0.75 to 0.04 and 0.05 at step 109, NaN on both ranks at
step 110 and from there on.
Report: google/flax#1491 (variance can be negative in BatchNorm, leading to NaN), tenstorrent/tt-metal#45968 (E[x^2] - E[x]^2 cancels),
tensorflow#3290.
Cause: forward arithmetic in the norm; or the data, whose unit is another. Place: norm, or what it is in. Right: variance / clamp / eps / sqrt of a
negative / float64 / input. Wrong: learning rate, mask, GradScaler."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [110, 111], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "sqrt|negative|clamp|eps|input|batch|varian"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(510); torch.set_num_threads(1)


class AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class NaiveSyncBatchNorm(nn.Module):
    def __init__(self, n, eps=1e-5):
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n)), eps

    def forward(self, x):
        both = AllReduce.apply(torch.cat([x.mean(0), (x * x).mean(0)])) / 2
        mean, square = both.chunk(2)
        return (x - mean) * torch.rsqrt(square - mean * mean + self.eps) * self.weight + self.bias


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.body, self.head = NaiveSyncBatchNorm(6), nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()), nn.Linear(64, 1)

    def forward(self, x):
        return self.head(self.body(self.norm(x))).squeeze(-1)


model = nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(100 + rank)
for step in range(200):
    x = torch.rand(64, 6)
    y = torch.sin(5 * x[:, 0]) + x[:, 1] * x[:, 3] - x[:, 2]
    if step >= 110:
        x[:, 2] = 101325.0 + 20 * x[:, 2]
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (109, 110, 111):
        print(rank, step, loss.item(), flush=True)
handle.detach()
dist.destroy_process_group()
