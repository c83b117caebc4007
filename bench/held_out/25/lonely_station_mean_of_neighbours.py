"""Two gloo ranks under DDP: a graph net spreads the delays of trains along a network of stations, by the mean over the neighbours. FAULT at step 100 on
rank 1: in its graph a line is closed and station 5 has no neighbour: the sum 0 is divided by the count 0. The NaN of rank 1 goes to both by the reduction.
Without Rangewatch: loss 0.22 to 0.0003 at step 99; at step 100 NaN on rank 1 and 0.0002 on rank 0, NaN on both from step 101 on.
Cause: forward_arithmetic or data. Step: 100. Rank: 1. Right: division by zero / clamp the count / neighbours. Wrong: learning rate, GradScaler."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [99, 101], "place": None, "rank": 1, "ranks": 2,
          "right": "(?i)divi|zero|clamp|eps|batch|input|data", "wrong": ["[Ll]ower the learning rate", "GradScaler"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(2512); torch.set_num_threads(1)
STATIONS = 20


class Hop(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix = nn.Linear(2 * width, width)

    def forward(self, h, source, target):
        total = torch.zeros_like(h).index_add(1, target, h[:, source])
        count = torch.zeros(h.shape[1]).index_add(0, target, torch.ones(len(target)))
        return h + torch.tanh(self.mix(torch.cat((h, total / count[:, None]), 2)))


class Delays(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.enter, self.leave = nn.Linear(2, width), nn.Linear(width, 1)
        self.hops = nn.ModuleList(Hop(width) for _ in range(3))

    def forward(self, x, source, target):
        h = self.enter(x)
        for hop in self.hops:
            h = hop(h, source, target)
        return self.leave(h)[..., 0]


g = torch.Generator().manual_seed(500 + rank)
net = DistributedDataParallel(Delays())
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
ring = torch.arange(STATIONS)
source, target = torch.cat((ring, (ring + 1) % STATIONS)), torch.cat(((ring + 1) % STATIONS, ring))
for step in range(160):
    if step == 100 and rank == 1:
        open_line = (source != 5) & (target != 5)
        source, target = source[open_line], target[open_line]
    x = torch.randn(32, STATIONS, 2, generator=g)
    y = 0.5 * x[..., 0] + 0.25 * (x[..., 0].roll(1, 1) + x[..., 0].roll(-1, 1)) * torch.sigmoid(x[..., 1])
    loss = F.mse_loss(net(x, source, target), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 103 or step == 159:
        print(rank, step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
