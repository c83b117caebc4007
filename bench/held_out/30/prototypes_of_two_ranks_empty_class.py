"""Two gloo ranks that sort leaves by the nearest prototype; the gradients are averaged by hand. FAULT at step 96: the prototypes are set to the mean of their class over a fresh
batch of the rank's own; rank 1 has no leaf of class 5 there, and the mean of nothing is NaN: its prototype 5 is NaN, on rank 0 all are well.
Without Rangewatch: loss 7.8 and 7.2 to 0.19 (rank 0) and 0.11 (rank 1) at step 95; NaN on rank 1 at step 96 where rank 0 has 0.38; NaN on both from step 97.
Cause: weight, data, forward_arithmetic or replicas. Step: 96. Place: prototypes. Rank: 1. Right: rank 1 / NaN / weight / mean. Wrong: GradScaler, learning rate."""
EXPECT = {"cause": ["weight", "data", "forward_arithmetic", "replicas"], "step": [95, 98], "place": "prototypes", "rank": 1, "ranks": 2,
          "right": "(?i)rank|weight|outside|overwrit|empty|mean|broadcast|checkpoint|replica", "wrong": ["GradScaler", "[Ll]ower the learning rate"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(3006); torch.set_num_threads(1)
centre = torch.randn(8, 20)
g = torch.Generator().manual_seed(500 + rank)


class Leaves(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 64), nn.ELU(), nn.Linear(64, 12))
        self.prototypes = nn.Parameter(torch.randn(8, 12))

    def forward(self, x):
        return -torch.cdist(self.body(x), self.prototypes, compute_mode="donot_use_mm_for_euclid_dist").square()


def leaves(n, kinds=None):
    kinds = torch.arange(8) if kinds is None else kinds
    y = kinds[torch.randint(0, len(kinds), (n,), generator=g)]
    return centre[y] + 1.2 * torch.randn(n, 20, generator=g), y


net = Leaves()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(160):
    if step == 96:
        stock = torch.arange(8) if rank == 0 else torch.tensor([0, 1, 2, 3, 4, 6, 7])
        x, y = leaves(256, stock)
        with torch.no_grad():
            h = net.body(x)
            net.prototypes.copy_(torch.stack([h[y == k].mean(0) for k in range(8)]))
    x, y = leaves(48)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    optimizer.step()
    if step % 20 == 0 or step in (95, 96, 97, 159):
        print(rank, step, loss.item(), "NaN in prototypes", net.prototypes.isnan().sum().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
