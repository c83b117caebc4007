"""Two gloo ranks under DDP train a click model (embeddings and three numeric columns, Adagrad). FAULT at step 120: rank 1's shard has rows whose `age` is missing (NaN from the CSV) and nobody fills it;
the averaged gradients take the NaN to rank 0.
Without Rangewatch: loss 0.71 to 0.40 at step 119; NaN on rank 1 from step 120, on rank 0 from step 121 on.
Cause: data. Step: 120, rank 1. Right: input / missing / NaN in the batch. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["data"], "step": [119, 123], "place": None, "rank": 1, "ranks": 2,
          "right": "(?i)input|batch|data|missing|shard|nan_to_num|column", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(3419); torch.set_num_threads(1)
taste = torch.randn(40, 30)


class Clicks(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.ad = nn.Embedding(40, 16), nn.Embedding(30, 16)
        self.numeric = nn.Linear(3, 16)
        self.deep = nn.Sequential(nn.Linear(48, 64), nn.PReLU(), nn.Linear(64, 1))

    def forward(self, u, a, x):
        return self.deep(torch.cat([self.user(u), self.ad(a), self.numeric(x)], 1))[:, 0]


def rows(g, step):
    u, a = torch.randint(0, 40, (64,), generator=g), torch.randint(0, 30, (64,), generator=g)
    age = 18 + 50 * torch.rand(64, generator=g)
    x = torch.stack([(age - 43) / 15, torch.randn(64, generator=g), torch.rand(64, generator=g)], 1)
    y = (taste[u, a] + x[:, 0] - 0.7 * x[:, 1] > 0).float()
    if rank == 1 and step >= 120:
        x[torch.rand(64, generator=g) < 0.05, 0] = float("nan")
    return u, a, x, y


model = DistributedDataParallel(Clicks())
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
handle = rangewatch.attach(model, optimizer)
g = torch.Generator().manual_seed(60 + rank)
for step in range(180):
    u, a, x, y = rows(g, step)
    loss = nn.functional.binary_cross_entropy_with_logits(model(u, a, x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 118 < step < 123 or step == 179:
        print(rank, step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
