"""Fine-tuning of a small conv net with DDP on two gloo ranks, the stem frozen at first. FAULT at step 80: the stem is unfrozen, but DDP was built while it was
frozen and does not know it: each rank steps the stem with its own gradient, the two stems part.
Without Rangewatch: loss 1.6 to 1.1 at step 79, 0.3 at the end on both; the stems' sums are equal (-1.5058) to step 79, -1.530 and -1.518
at 80, -2.00 and -1.82 at step 100; the trunks' sums stay equal.
Cause: replicas or communication. Step: 80. Place: the stem. Right: DDP / all_reduce / unfrozen / replicas. Wrong: GradScaler, learning rate."""
EXPECT = {"cause": ["replicas", "communication"], "step": [79, 105], "place": "stem.*", "rank": None, "ranks": 2,
          "right": "(?i)DDP|DistributedDataParallel|all_?reduce|replica|sync|rank|reduc", "wrong": ["GradScaler", "[Ll]ower the learning rate"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(2917); torch.set_num_threads(1)
textures = torch.randn(5, 1, 8, 8)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 12, 5, padding=2), nn.GELU(), nn.MaxPool2d(2))
        self.trunk = nn.Sequential(nn.Conv2d(12, 24, 3, padding=1), nn.GELU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.classify = nn.Linear(96, 5)

    def forward(self, x):
        return self.classify(self.trunk(self.stem(x)))


def pictures(n, g):
    y = torch.randint(0, 5, (n,), generator=g)
    x = textures[y].repeat(1, 1, 2, 2)
    roll = int(torch.randint(0, 8, (1,), generator=g))
    return x.roll(roll, -1) + 1.2 * torch.randn(n, 1, 16, 16, generator=g), y


net = Net()
net.stem.requires_grad_(False)
ddp = DistributedDataParallel(net)
optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=3e-3)
handle = rangewatch.attach(net, optimizer)
g = torch.Generator().manual_seed(900 + rank)
for step in range(180):
    if step == 80:
        net.stem.requires_grad_(True)
        optimizer.add_param_group({"params": list(net.stem.parameters()), "lr": 3e-3})
    x, y = pictures(24, g)
    loss = F.cross_entropy(ddp(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (79, 81, 179):
        print(rank, step, loss.item(), "stem", net.stem[0].weight.sum().item(), "trunk", net.trunk[0].weight.sum().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
