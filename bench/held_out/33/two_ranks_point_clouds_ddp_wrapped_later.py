"""Two gloo ranks classify point clouds (PointNet, Adamax), each with clouds of its own noise. For 100 steps the script averages the gradients by hand; then it wraps the net in DistributedDataParallel and leaves the averaging to that.
FAULT at step 100: the training step still calls the function `forward`, which was bound to the bare net before: the forward goes past the wrapper, DDP's reducer is never prepared and
no gradient is averaged any more.
Without Rangewatch: loss 1.4 to 0.28 at step 99 with equal sums of weights; from step 100 on the sums of the two ranks part (55.9 and 49.3 at the end).
Cause: replicas (communication). Step: 100. Right: DDP / all_reduce / wrapper / replicas. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["replicas", "communication"], "step": [99, 112], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)all.?reduce|DistributedDataParallel|DDP|averag|replica|synchroni|broadcast|wrap",
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3324); torch.set_num_threads(1)
g = torch.Generator().manual_seed(44 + rank)


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, 32), nn.Hardswish(), nn.Linear(32, 48), nn.Hardswish())
        self.cloud = nn.Sequential(nn.Linear(48, 32), nn.Hardswish(), nn.Linear(32, 4))

    def forward(self, x):
        return self.cloud(self.point(x).amax(1))


def clouds(n):
    y = torch.randint(0, 4, (n,), generator=g)
    p = torch.randn(n, 24, 3, generator=g)
    ball = p / p.norm(dim=2, keepdim=True)
    box = p.clamp(-0.6, 0.6)
    rod = p * torch.tensor([1.5, 0.1, 0.1])
    disc = p * torch.tensor([1.0, 1.0, 0.1])
    x = torch.stack([ball, box, rod, disc])[y, torch.arange(n)]
    return x + (0.05 + 0.1 * rank) * torch.randn(n, 24, 3, generator=g), y


net = PointNet()
forward = net.forward
optimizer = torch.optim.Adamax(net.parameters(), lr=4e-3)
handle = rangewatch.attach(net, optimizer)
ddp = None
for step in range(180):
    if step == 100:
        ddp = nn.parallel.DistributedDataParallel(net)
    x, y = clouds(32)
    loss = F.cross_entropy(forward(x), y)
    optimizer.zero_grad()
    loss.backward()
    if ddp is None:
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
    optimizer.step()
    if step % 20 == 0 or 98 < step < 103 or step == 179:
        print(rank, step, loss.item(), "sum of weights", sum(p.sum() for p in net.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
