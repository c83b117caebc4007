"""Two gloo ranks without DistributedDataParallel: gradients are summed by all_reduce by hand and divided by the count of all rows; rank 0 has three times
the rows of rank 1, and other kinds of rows, so that losses and own gradients differ while the weights stay the same. HEALTHY.
Without Rangewatch: losses 1.74 and 1.76 to 0.07 and 0.10; the weights' norms agree in every digit."""
EXPECT = {"healthy": True, "ranks": 2}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1348); torch.set_num_threads(1)
BERRIES = 6
berry = torch.randn(BERRIES, 30)


class BerryNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(30, 48), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, BERRIES))

    def forward(self, x):
        return self.net(x)


def baskets(generator):
    n, first = (48, 0) if rank == 0 else (16, 2)  # each has some kinds of its own
    y = first + torch.randint(0, BERRIES - 2, (n,), generator=generator)
    return berry[y] + 1.5 * torch.randn(n, 30, generator=generator), y


model = BerryNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
own = torch.Generator().manual_seed(40 + rank)
for step in range(220):
    x, y = baskets(own)
    rows = torch.tensor(float(len(y)))
    dist.all_reduce(rows)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    (loss * len(y) / rows).backward()
    for each in model.parameters():
        dist.all_reduce(each.grad)
    optimizer.step()
    if step % 40 == 0 or step == 219:
        print(rank, step, loss.item(), "weights", sum(each.detach().double().norm() for each in model.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
