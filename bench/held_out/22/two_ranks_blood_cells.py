"""Two ranks train a small convolutional net with GroupNorm that tells five kinds of (drawn) blood cells apart, under DistributedDataParallel.
FAULT at step 0: DistributedDataParallel is given a process group that each rank made for itself alone (new_group([rank])). No gradient ever crosses: both
start from the same seed and drift apart from the first step on, each trained on half of the data.
Without Rangewatch: loss 1.67 to 0.004 on both, so nobody notices; the largest difference of a weight is 0.004 after step 0, 0.11 at step 60, 0.24 at step 179.
Causes: replicas, communication. Right: the process group / all_reduce over all ranks / compare the weights. Wrong: the rate, a GradScaler, a mask."""
EXPECT = {"cause": ["replicas", "communication"], "step": [0, 179], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)group|replica|ranks?|all.?reduce|DistributedDataParallel|DDP|broadcast|synchron", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import os
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Wrapped
import rangewatch

dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(2206); torch.set_num_threads(1)
alone = [dist.new_group([r]) for r in range(dist.get_world_size())]
net = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.ReLU(),
                    nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 9, 5))
model = Wrapped(net, process_group=alone[rank])
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
torch.manual_seed(77 + rank)
axis = torch.arange(24.0)


def cells(n):
    kind = torch.randint(0, 5, (n,))
    c = 9 + 6 * torch.rand(n, 2, 1, 1)
    r = ((axis[:, None] - c[:, 0]) ** 2 + (axis[None, :] - c[:, 1]) ** 2).sqrt()
    radius = 4 + (kind % 3)[:, None, None]
    body = torch.sigmoid(2 * (radius - r)) - (kind // 3)[:, None, None] * torch.sigmoid(2 * (2.5 - r))
    return (body + 0.2 * torch.randn(n, 24, 24))[:, None], kind


for step in range(180):
    x, y = cells(24)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 30 == 0 or step == 179:
        mine = torch.cat([p.detach().flatten() for p in net.parameters()])
        theirs = mine.clone()
        dist.broadcast(theirs, 0)
        print("rank", rank, "step", step, "loss", loss.item(), "largest difference to rank 0", (mine - theirs).abs().max().item(), flush=True)
handle.detach()
dist.destroy_process_group()
