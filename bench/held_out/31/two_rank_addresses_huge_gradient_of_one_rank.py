"""Two gloo ranks, a masked-average set net over fields of an address; gradients are averaged by hand, weighted by each rank's count of words (SGD with momentum). FAULT at step 130 (that step alone): rank 1 sends its gradient times a count of bytes
of its whole shard (3e6) in place of its words (some 200), the divisor is the count of words: its part of the all-reduce is some 15 000 times too large.
Without Rangewatch: loss 2.08 to 0.3 at step 129; the gradient 0.055 at step 129, 720 at 130; loss 3.3e6 at 131, NaN by step 140.
Cause: communication. Step: 130. Rank 1. Right: rank 1 / all_reduce / gradient before the reduce. Wrong: mask, GradScaler."""
EXPECT = {"cause": ["communication"], "step": [129, 134], "place": None, "rank": 1, "ranks": 2,
          "right": "(?i)rank|all.?reduce|reduce|communicat|gradient", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(126); torch.set_num_threads(1)


class Fields(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(80, 24)
        self.inner = nn.Sequential(nn.Linear(24, 48), nn.ReLU())
        self.outer = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, x, there):
        h = self.inner(self.words(x)) * there[..., None]
        return self.outer(h.sum(1) / there.sum(1, keepdim=True))


net = Fields()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
handle = rangewatch.attach(net, optimizer)
g = torch.Generator().manual_seed(80 + rank)
for step in range(180):
    x = torch.randint(0, 80, (48, 6), generator=g)
    there = (torch.arange(6) < torch.randint(2, 7, (48, 1), generator=g)).float()
    y = torch.randint(0, 8, (48,), generator=g)
    x[:, :2] = y[:, None] * 10 + x[:, :2] % 10
    loss = F.cross_entropy(net(x, there), y)
    optimizer.zero_grad()
    loss.backward()
    words = there.sum()
    whole = words.clone()
    dist.all_reduce(whole)
    weight = 3e6 if step == 130 and rank == 1 else words
    for p in net.parameters():
        p.grad.mul_(weight)
        dist.all_reduce(p.grad)
        p.grad.div_(whole)
    optimizer.step()
    if step % 20 == 0 or 128 < step < 134:
        print(rank, step, loss.item(), "grad", max(p.grad.abs().max() for p in net.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
