"""Two gloo ranks under DDP, an N-BEATS-like forecaster of load curves (Adam). FAULT at step 130: the trainer goes back to the checkpoint of step 30, but the loading stands under `if rank == 0`, and
DDP sends weights round only when it is built: rank 0 has old weights, rank 1 the new ones, both take the same steps from there.
Without Rangewatch: loss 0.32 to 0.0017 at step 129; rank 0 0.031 at 130 and 0.0076 at the end, rank 1 0.0020 at 130, up to 0.0078 at 160; sums of |weights| 1549.4 and 1558.2 at step 130.
Cause: replicas (the checkpoint is loaded on one rank). Step: 130. Right: replicas differ / broadcast / load on each rank. Wrong: learning rate, GradScaler, mask."""
EXPECT = {"cause": ["replicas"], "step": [129, 135], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)replica|broadcast|each rank|every rank|all ranks|checkpoint|load|differ|part", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import io
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(3418); torch.set_num_threads(1)
PAST, AHEAD = 24, 6


class Stage(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(PAST, 64), nn.Mish(), nn.Linear(64, 64), nn.Mish())
        self.ahead = nn.Linear(64, AHEAD)
        self.back = None if last else nn.Linear(64, PAST)

    def forward(self, x):
        h = self.body(x)
        return None if self.back is None else x - self.back(h), self.ahead(h)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([Stage(k == 2) for k in range(3)])

    def forward(self, x):
        out = 0
        for s in self.stages:
            x, y = s(x)
            out = out + y
        return out


def curves(n, g):
    t = torch.arange(PAST + AHEAD) / 12
    p, q = 6.28 * torch.rand(n, 1, generator=g), 6.28 * torch.rand(n, 1, generator=g)
    y = torch.sin(6.28 * t + p) + 0.5 * torch.sin(6.28 * 0.4 * t + q) + 0.05 * torch.randn(n, PAST + AHEAD, generator=g)
    return y[:, :PAST], y[:, PAST:]


net = Forecaster()
ddp = DistributedDataParallel(net)
optimizer = torch.optim.Adam(ddp.parameters(), lr=5e-4)
handle = rangewatch.attach(ddp, optimizer)
g = torch.Generator().manual_seed(18 + rank)
file = io.BytesIO()
for step in range(220):
    if step == 30 and rank == 0:
        torch.save(net.state_dict(), file)
    if step == 130 and rank == 0:
        file.seek(0)
        net.load_state_dict(torch.load(file))
    x, y = curves(48, g)
    loss = nn.functional.smooth_l1_loss(ddp(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 128 < step < 134 or step == 219:
        print(rank, step, loss.item(), "sum of |w|", sum(p.detach().abs().sum() for p in net.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
