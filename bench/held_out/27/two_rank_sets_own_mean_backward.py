"""Two gloo ranks train a net over sets of points with a mean of its own (an autograd Function); gradients are averaged by hand, Adam. FAULT at step 100, rank
1: its shard has an empty set; forward divides by the count clamped at 1, backward by the count itself: 0 / 0, and the all_reduce gives the NaN to both.
Without Rangewatch: loss 0.7 and 2.9 to 0.15 and 0.23 at step 100, NaN on both ranks from step 101.
Cause: backward_arithmetic, data or eps. Step: 100. Rank: 1. Right: backward / zero / divide / rank 1. Wrong: GradScaler, learning rate."""
EXPECT = {"cause": ["backward_arithmetic", "data", "eps", "mask"], "step": [99, 102], "place": None, "rank": 1, "ranks": 2,
          "right": "(?i)backward|divi|zero|eps|nan|rank 1|empty|function", "wrong": ["GradScaler", "[Ll]ower the learning rate"]}
import torch
import torch.distributed as dist
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(2708); torch.set_num_threads(1)


class SetMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, present):
        count = present.sum(1, keepdim=True)
        ctx.save_for_backward(present, count)
        return (h * present[..., None]).sum(1) / count.clamp(min=1)

    @staticmethod
    def backward(ctx, g):
        present, count = ctx.saved_tensors
        return g[:, None] * (present / count)[..., None], None


class Sets(nn.Module):
    def __init__(self):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, 48), nn.ReLU(), nn.Linear(48, 48))
        self.whole = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, x, present):
        return self.whole(SetMean.apply(self.point(x), present))[:, 0]


net = Sets()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
g = torch.Generator().manual_seed(50 + rank)
for step in range(170):
    x = torch.randn(32, 10, 3, generator=g) + torch.randn(32, 1, 3, generator=g)
    size = torch.randint(2, 11, (32,), generator=g)
    if rank == 1 and step >= 100 and step % 10 == 0:
        size[5] = 0
    present = (torch.arange(10) < size[:, None]).float()
    centre = (x * present[..., None]).sum(1) / size.clamp(min=1)[:, None]
    y = torch.sin(centre[:, 0]) + centre[:, 1] * centre[:, 2]
    loss = nn.functional.mse_loss(net(x, present), y)
    optimizer.zero_grad()
    loss.backward()
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world
    optimizer.step()
    if step % 20 == 0 or step in (99, 101, 169):
        print(rank, step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
