"""HEALTHY. Two ranks with DDP forecast the waiting time of ships; rank 0 reads a quiet harbour, rank 1 a busy one, whose times are six times as long: its
loss is thirty times as high at first and mostly some times as high later, and both come down.
Without Rangewatch: loss 1.30 and 37.5 at step 0, 8.4 and 8.7 at step 20, 0.12 and 0.26 at step 140, 0.009 and 0.113 at the end."""
EXPECT = {"healthy": True, "ranks": 2}
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(1839)


class Harbour(nn.Module):
    def __init__(self):
        super().__init__()
        self.ship = nn.Embedding(8, 12)
        self.net = nn.Sequential(nn.Linear(17, 64), nn.Softplus(), nn.Linear(64, 32), nn.Softplus(), nn.Linear(32, 1))

    def forward(self, ship, x):
        return self.net(torch.cat((self.ship(ship), x), 1))[:, 0]


size = torch.rand(8)
model = DistributedDataParallel(Harbour())
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(40 + rank)
for step in range(220):
    ship, x = torch.randint(0, 8, (64,)), torch.randn(64, 5)
    x[:, 4] = rank
    wait = (1 + 5 * rank) * (0.4 + size[ship] + 0.5 * torch.sigmoid(x[:, 0] + x[:, 1]) + 0.05 * torch.randn(64))
    loss = F.mse_loss(model(ship, x), wait)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(rank, step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
