"""A bag-of-words classifier under DistributedDataParallel on two gloo ranks with gradient accumulation over 4 microbatches. FAULT from the start: the condition for no_sync is
`micro_step % accum != 0` where the last microbatch has micro_step = accum - 1 (0-based): the backward that should reduce is within no_sync too; only the first one reduces,
whose gradient the other three then add to locally. Each rank steps with three quarters of its own gradient: the replicas part.
Without Rangewatch: loss 0.69 to 0.30 on rank 0 and 0.35 on rank 1; the sums of the absolute weights are 3893.25 and 3893.39 after the first step, 3941.0 and 3944.1 at step 100.
Cause: replicas or communication. Step: any. Right: no_sync / all_reduce / replicas. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["replicas", "communication"], "step": [0, 180], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)no_sync|all_?reduce|replica|reduc|rank|sync|DDP|DistributedDataParallel", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import contextlib
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(47); torch.set_num_threads(1)
V = 200
polarity = torch.randn(V, generator=torch.Generator().manual_seed(1))


class BagNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(V, 24)
        self.hidden, self.out = nn.Linear(24, 48), nn.Linear(48, 2)

    def forward(self, ids):
        return self.out(F.relu(self.hidden(self.bag(ids))))


model = DDP(BagNet())
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
accum = 4
g = torch.Generator().manual_seed(500 + rank)
for step in range(180):
    optimizer.zero_grad()
    total = 0.0
    for micro_step in range(accum):
        ids = torch.randint(0, V, (16, 15), generator=g)
        y = (polarity[ids].sum(1) > 0).long()
        with model.no_sync() if micro_step % accum != 0 else contextlib.nullcontext():
            loss = F.cross_entropy(model(ids), y) / accum
            loss.backward()
        total += loss.item()
    optimizer.step()
    if step % 20 == 0 or step == 179:
        print(rank, step, total, "sum of |weights|", sum(p.abs().sum() for p in model.parameters()).item(), flush=True)
    handle.log(loss=total)
handle.detach()
dist.destroy_process_group()
