"""DDP on two gloo ranks, a forecaster of the load of two power grids: rank 0 reads a calm town, rank 1 a noisy city, so that the losses of the ranks stay far
apart. HEALTHY: the gradients are reduced by DDP, the weights are the same on both.
Without Rangewatch: loss 0.16 to 0.018 on rank 0, 1.33 to 0.28 on rank 1; the sums of the weights are equal."""
EXPECT = {"healthy": True, "ranks": 2}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(2923); torch.set_num_threads(1)


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 32, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


noise, height = (0.05, 0.5) if rank == 0 else (0.4, 1.5)
g = torch.Generator().manual_seed(40 + rank)
t = torch.arange(28) * 0.4


def load(n):
    phase, pace = 6.28 * torch.rand(n, 1, generator=g), 0.8 + 0.4 * torch.rand(n, 1, generator=g)
    s = height * torch.sin(pace * t + phase) + noise * torch.randn(n, 28, generator=g)
    return s[:, :24, None], s[:, 24:]


net = Forecast()
ddp = DistributedDataParallel(net)
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(180):
    x, y = load(32)
    loss = F.mse_loss(ddp(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 179:
        print(rank, step, loss.item(), "sum of weights", sum(p.sum() for p in net.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
