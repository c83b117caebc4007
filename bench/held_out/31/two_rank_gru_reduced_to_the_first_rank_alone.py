"""Two gloo ranks, gradients averaged by hand, a GRU that tells which of four rhythms a series has (RMSprop). FAULT from step 100: the loop uses `dist.reduce(grad, dst=0)` in place of `all_reduce`
(the branch for "less traffic"): rank 0 steps with the sum, rank 1 with its own gradient; the replicas part.
Without Rangewatch: loss 1.39 to 0.34 at step 99, on to 0.08; the sums of |weights| are the same (565.65) to step 99, 566.59 and 566.47 behind step 100, 634.4 and 619.8 at the end.
Cause: communication (replicas). Step: 100. Right: all_reduce / replicas / broadcast. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["communication", "replicas"], "step": [99, 112], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)all.?reduce|reduce|replica|broadcast|synchron|average|DDP|DistributedDataParallel", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(103); torch.set_num_threads(1)


class Rhythm(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 32, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.gru(x)[0].mean(1))


net = Rhythm()
optimizer = torch.optim.RMSprop(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
g = torch.Generator().manual_seed(50 + rank)
for step in range(220):
    y = torch.randint(0, 4, (48,), generator=g)
    t = torch.arange(24.0) + 6 * torch.rand(48, 1, generator=g)
    x = torch.sin(t * (0.4 + 0.35 * y[:, None])) + 0.4 * torch.randn(48, 24, generator=g)
    loss = F.cross_entropy(net(x[..., None]), y)
    optimizer.zero_grad()
    loss.backward()
    for p in net.parameters():
        if step < 100:
            dist.all_reduce(p.grad)
        else:
            dist.reduce(p.grad, dst=0)
        p.grad /= world
    optimizer.step()
    if step % 20 == 0 or step in (99, 100, 101, 219):
        print(rank, step, loss.item(), "weights", sum(p.abs().sum() for p in net.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
