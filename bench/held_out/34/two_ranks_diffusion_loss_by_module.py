"""Two gloo ranks, DDP around a small 2-d diffusion model; the loss is a method of the net. FAULT from step 0: the loop calls `ddp.module.training_loss(x)`, which goes past DDP's forward: no gradient
is averaged, each rank trains on its own half of the data and the replicas part.
Without Rangewatch: losses 0.93 and 1.02 to 0.36 and 0.44; the sums of |weights| are 2119.70 and 2119.78 after step 0, 2230.3 and 2223.2 at the end.
Cause: replicas (communication does not take place). Step: 0. Right: call the DDP wrapper, not module / replicas differ / all-reduce. Wrong: learning rate, GradScaler, mask."""
EXPECT = {"cause": ["replicas", "communication"], "step": [0, 40], "place": None, "rank": None, "ranks": 2,
          "right": r"(?i)\.module|DDP|DistributedDataParallel|all.?reduce|averag|replica|synchroni|differ", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(3420); torch.set_num_threads(1)
T = 50
abar = torch.cumprod(1 - torch.linspace(1e-3, 0.15, T), 0)


class Diffusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(T, 32)
        self.inp = nn.Linear(2, 32)
        self.net = nn.Sequential(nn.SiLU(), nn.Linear(32, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 2))

    def forward(self, x, t):
        return self.net(self.inp(x) + self.time(t))

    def training_loss(self, x):
        t = torch.randint(0, T, (len(x),))
        noise = torch.randn_like(x)
        a = abar[t, None]
        return nn.functional.mse_loss(self(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)


def arc(n):
    angle = 3.1416 * (torch.rand(n) + rank)
    return 2 * torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(n, 2)


net = Diffusion()
ddp = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(ddp.parameters(), lr=2e-3)
handle = rangewatch.attach(ddp, optimizer)
torch.manual_seed(500 + rank)
for step in range(240):
    loss = ddp.module.training_loss(arc(96))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (1, 2, 239):
        print(rank, step, loss.item(), "sum of |w|", sum(p.detach().abs().sum() for p in net.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
