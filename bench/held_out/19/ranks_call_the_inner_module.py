"""Two ranks learn to tell birds by song with DistributedDataParallel. FAULT at step 70: the loop calls ddp.module(x) (somebody wanted an extra output of
the inner model), so that the forward goes past the wrapper and no gradient is averaged any more; each rank trains for itself.
Without Rangewatch: the heads of the two ranks are equal to the bit up to step 69 and differ by 0.0018 at step 70, by 0.03 at the end; loss 1.93 to 0.012.
Cause: communication or replicas. Step: 70 (or when the replicas are next compared). Right: call the wrapper / DistributedDataParallel / all-reduce. Wrong:
rate."""
EXPECT = {"cause": ["communication", "replicas"], "step": [69, 180], "place": None, "rank": None, "ranks": 2,
          "wrong": ["(?i)lower the learning rate", "GradScaler", "(?i)attention mask"],
          "right": "(?i)wrap|DistributedDataParallel|\\bddp\\b|all.?reduce|averag|replica|synchron|module"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1911); torch.set_num_threads(1)
BIRDS = 7


class SongNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.wave = nn.Sequential(nn.Conv1d(1, 16, 7, 2, 3), nn.GELU(), nn.Conv1d(16, 24, 5, 2, 2), nn.GELU())
        self.bird = nn.Linear(24, BIRDS)
        self.feature = None

    def forward(self, x):
        self.feature = self.wave(x[:, None]).square().mean(2)
        return self.bird(self.feature)


def songs(n):
    y = torch.randint(0, BIRDS, (n,))
    t = torch.arange(80) / 80
    tone = torch.sin(6.2832 * ((6 + 4 * y[:, None]) * t + (y[:, None] % 3) * 4 * t ** 2 + torch.rand(n, 1)))
    return tone + 0.5 * torch.randn(n, 80), y


ddp = DistributedDataParallel(SongNet())
optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
handle = rangewatch.attach(ddp, optimizer)
torch.manual_seed(100 + rank)
for step in range(180):
    x, y = songs(24)
    if step < 70:
        loss = F.cross_entropy(ddp(x), y)
    else:
        loss = F.cross_entropy(ddp.module(x), y) + 1e-4 * ddp.module.feature.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or step in (69, 70, 71, 179):
        weight = ddp.module.bird.weight.detach()
        both = [torch.zeros_like(weight) for _ in range(2)]
        dist.all_gather(both, weight)
        if rank == 0:
            print(step, loss.item(), "largest difference of the heads", (both[0] - both[1]).abs().max().item(), flush=True)
handle.detach()
dist.destroy_process_group()
