"""Two gloo ranks that pick the first wave of earthquakes with a one-dimensional conv net, without DDP. FAULT from the start: the code that averages the
gradients over the ranks stands behind `if args.distributed`, which is never set: each rank steps with its own gradient and the two nets part.
Without Rangewatch: loss 4.55 to 0.3 to 1.5 on both ranks; the sums of the weights differ by 1.1 after the first step (1.05 and 2.20), by 10 at step
100 (133.7 and 143.7), by 8.6 at the end.
Cause: replicas or communication. Step: any. Right: all_reduce / DistributedDataParallel / replicas. Wrong: learning rate, GradScaler."""
EXPECT = {"cause": ["replicas", "communication"], "step": [0, 180], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)all_?reduce|DistributedDataParallel|DDP|replica|reduc|rank|averag", "wrong": ["[Ll]ower the learning rate", "GradScaler"]}
import types
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(2509); torch.set_num_threads(1)
args = types.SimpleNamespace(distributed=False)

picker = nn.Sequential(
    nn.Conv1d(1, 12, 9, padding=4), nn.ReLU(), nn.Conv1d(12, 24, 9, padding=4), nn.ReLU(),
    nn.Conv1d(24, 24, 9, padding=8, dilation=2), nn.ReLU(), nn.Conv1d(24, 1, 1))
optimizer = torch.optim.Adam(picker.parameters(), lr=3e-3)
handle = rangewatch.attach(picker, optimizer)
mine = torch.Generator().manual_seed(77 + rank)
t = torch.arange(96)
for step in range(180):
    onset = torch.randint(10, 80, (12, 1), generator=mine)
    wave = (t >= onset) * torch.sin((t - onset) * 0.9) * torch.exp(-(t - onset).clamp(min=0) / 15.0)
    trace = 2 * wave + 1.0 * torch.randn(12, 96, generator=mine)
    loss = F.cross_entropy(picker(trace[:, None])[:, 0], onset[:, 0])
    optimizer.zero_grad()
    loss.backward()
    if args.distributed:
        for p in picker.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
    optimizer.step()
    if step % 20 == 0 or step == 179:
        print(rank, step, loss.item(), "sum of weights", sum(p.sum() for p in picker.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
