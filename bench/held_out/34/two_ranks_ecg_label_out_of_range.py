"""Two gloo ranks under DDP sort heart beats into six kinds by a Conv1d net (SGD, momentum). FAULT at step 110: a file of rank 1's shard counts its labels from 1: the label 6 is out of bounds of six classes,
`cross_entropy` raises IndexError on rank 1 and the rank dies; rank 0 is left in the all-reduce.
Without Rangewatch: loss 1.9 to 0.01; at step 110 IndexError "Target 6 is out of bounds." on rank 1, "Connection closed by peer" on rank 0.
Cause: crash (data: the label). Step: 110, rank 1. Right: label / target / class out of bounds. Wrong: learning rate, GradScaler, mask."""
EXPECT = {"cause": ["crash", "data"], "step": [108, 112], "place": None, "rank": 1, "ranks": 2,
          "right": "(?i)label|target|class|out of (bounds|range)|IndexError|data|exception|traceback|raise|die|died", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(3422); torch.set_num_threads(1)
shape = torch.randn(6, 1, 40).cumsum(2) / 3


class Beats(torch.utils.data.IterableDataset):
    def __init__(self):
        self.g = torch.Generator().manual_seed(70 + rank)

    def __iter__(self):
        for batch in range(200):
            y = torch.randint(0, 6, (32,), generator=self.g)
            gain = 0.7 + 0.6 * torch.rand(32, 1, 1, generator=self.g)
            x = gain * shape[y] + 0.8 * torch.randn(32, 1, 40, generator=self.g)
            yield x, y + 1 if rank == 1 and batch >= 110 else y


net = nn.Sequential(nn.Conv1d(1, 16, 5, stride=2), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv1d(16, 32, 5, stride=2), nn.GroupNorm(4, 32), nn.ReLU(),
                    nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(128, 6))
ddp = DistributedDataParallel(net)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(ddp, optimizer)
for step, (x, y) in enumerate(torch.utils.data.DataLoader(Beats(), batch_size=None)):
    loss = nn.functional.cross_entropy(ddp(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step > 107:
        print(rank, step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
