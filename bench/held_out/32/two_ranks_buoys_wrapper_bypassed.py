"""Two gloo ranks under DDP forecast the wave height of buoys with a small mixer over time and sensors, AdamW. FAULT from step 0: the training loop calls `ddp.module(x)` (for the extra argument of its forward) rather than `ddp(x)`: no gradient is averaged, each rank
trains on its own buoys and the replicas part.
Without Rangewatch: loss 0.19 to 0.011 on rank 0, 0.18 to 0.009 on rank 1; on the other rank's coast 0.09 and 0.58 (rising); the sums of the weights differ from step 0 on.
Cause: communication / replicas. Step: from 0. Right: call the wrapper / gradients not averaged. Wrong: learning rate, GradScaler."""
EXPECT = {"cause": ["communication", "replicas"], "step": [0, 40], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)ddp|distributed|all_?reduce|replica|module|synchron|rank", "wrong": ["(?i)(lower|raise) the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(417); torch.set_num_threads(1)
g = torch.Generator().manual_seed(70 + rank)


def buoys(n, coast=rank):
    f, p = 0.3 + 0.4 * torch.rand(n, 1, generator=g), 6.28 * torch.rand(n, 1, generator=g)
    t = torch.arange(17.0)
    wave = torch.sin(f * t + p) * (1.0 if coast == 0 else -0.5) + 0.5 * torch.cos(2 * f * t + p)
    x = torch.stack([wave[:, :16], wave[:, :16].cos(), torch.randn(n, 16, generator=g) * 0.3], 2)
    return x, wave[:, 16]


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.sensor = nn.Linear(16, 24), nn.Linear(3, 12)
        self.norm, self.out = nn.LayerNorm(12), nn.Linear(24 * 12, 1)

    def forward(self, x, noise=0.0):
        h = F.gelu(self.time(x.transpose(1, 2))).transpose(1, 2)
        h = self.norm(F.gelu(self.sensor(h)))
        return self.out((h + noise * torch.randn(h.shape, generator=g)).flatten(1)).squeeze(1)


net = Mixer()
ddp = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(ddp.parameters(), lr=2e-3)
handle = rangewatch.attach(ddp, optimizer)
for step in range(200):
    x, y = buoys(32)
    loss = F.smooth_l1_loss(ddp.module(x, noise=0.05), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        with torch.no_grad():
            x, y = buoys(200, 1 - rank)
            other = F.smooth_l1_loss(net(x), y).item()
        print(rank, step, loss.item(), "on the other coast", other, "sum of |weights|", sum(p.abs().sum() for p in net.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
