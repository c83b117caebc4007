"""Two ranks under DistributedDataParallel tell wet coughs from dry ones; each row is disturbed by fresh noise, and three microbatches make an update. FAULT from the second
epoch on (step 6): nobody calls sampler.set_epoch(), each epoch deals the same rows in the same order to the same microbatch of the same rank, and the rows
that the last, incomplete update drops are the same each time: they are never learned from.
Without Rangewatch: 32 epochs have 1 order; 20 of the 200 rows of a rank are never learned from (the loss falls from 0.7 to 0.001, faster than with set_epoch to 0.009,
for it learns fewer rows by heart); with set_epoch 32 orders, and each rank learns from all 400.
Cause: data (the sampler). Step: from 6 on, a state. Right: set_epoch / sampler / shuffle / order. Wrong: GradScaler, lower the learning rate."""
EXPECT = {"cause": ["data"], "step": [5, 191], "place": None, "rank": None, "ranks": 2, "least": "info",
          "right": "(?i)set_epoch|sampler|shuffl|order|epoch", "wrong": ["GradScaler", "[Ll]ower the learning rate"]}
import contextlib
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler
import rangewatch

ROWS, MICRO, PARTS = 400, 10, 3


class Coughs(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(7)
        self.wet = (torch.rand(ROWS, generator=g) < 0.5).float()
        self.sound = torch.randn(ROWS, 36, generator=g)
        self.sound[:, :6] += 0.8 * (2 * self.wet[:, None] - 1)

    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        return i, self.sound[i] + 0.3 * torch.randn(36), self.wet[i]


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(2117)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(36, 96), nn.ReLU(), nn.Dropout(0.2), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 1))
torch.manual_seed(100 + rank)  # the noise is each rank's own
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = Coughs()
sampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, MICRO, sampler=sampler, drop_last=True)
handle = rangewatch.attach(model, optimizer)
step, seen, orders = 0, set(), set()
for epoch in range(32):
    order, held, total = [], 0, 0.0
    for i, x, y in loader:
        held += 1
        with contextlib.nullcontext() if held == PARTS else model.no_sync():
            loss = F.binary_cross_entropy_with_logits(model(x).squeeze(1), y) / PARTS
            loss.backward()
        order += i.tolist()
        total += loss.item()
        if held == PARTS:
            optimizer.step()
            optimizer.zero_grad()
            handle.log(loss=total)
            seen |= set(order)
            step, held, total = step + 1, 0, 0.0
    optimizer.zero_grad()  # what an incomplete update left
    orders.add(tuple(order))
    if rank == 0 and epoch % 4 == 3:
        print("epoch", epoch, "step", step, loss.item() * PARTS, "different orders", len(orders), "rows of this rank that were ever learned", len(seen), "of", ROWS // 2, flush=True)
handle.detach()
dist.destroy_process_group()
