"""Two ranks train an LSTM that says which of two symbols a sequence holds more often. Gradients are summed and halved by hand with all_reduce.
FAULT at step 0: each rank takes the norm of its own gradients before the all_reduce and, after it, clips the (common) mean with that norm of its own. The
norms differ between ranks (rank 1 reads longer sequences), so the ranks take steps of different length and their weights drift apart.
Without Rangewatch: loss falls from 0.70 to some 0.2 on both, but the distance between the weights of the ranks is 0.013 after step 0, 1.8 at step 50, 2.8 at step 100 and 4.4 at step 199
(of a length of 15.9).
Causes: replicas (the copies part), clip. Right: take the norm after the reduction, the same on all ranks; compare / broadcast the weights. Wrong: a GradScaler, a mask, lower the rate."""
EXPECT = {"cause": ["replicas", "clip"], "step": [0, 199], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)clip|replica|ranks?|norm|all.?reduce|broadcast|differ", "wrong": ["GradScaler", "attention mask"]}
import os
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(2202); torch.set_num_threads(1)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters = nn.Embedding(6, 16)
        self.reader = nn.LSTM(16, 40, batch_first=True)
        self.verdict = nn.Linear(40, 2)

    def forward(self, x):
        return self.verdict(self.reader(self.letters(x))[0][:, -1])


model = Counter()
params = list(model.parameters())
optimizer = torch.optim.SGD(params, lr=1.0, momentum=0.8)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(300 + rank)
for step in range(200):
    x = torch.randint(0, 6, (24, 8 if rank == 0 else 20))
    y = ((x == 0).sum(1) > (x == 1).sum(1)).long()
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in params]).norm()
    for p in params:
        dist.all_reduce(p.grad)
        p.grad /= world
        p.grad *= min(1.0, 0.05 / (norm.item() + 1e-6))
    optimizer.step()
    handle.log(loss=loss.item(), norm=norm.item())
    if step % 25 == 0 or step == 199:
        mine = torch.cat([p.detach().flatten() for p in params])
        other = mine.clone()
        dist.broadcast(other, 0)
        print("rank", rank, "step", step, "loss", loss.item(), "norm", norm.item(), "distance to rank 0", (mine - other).norm().item(), "of", mine.norm().item(), flush=True)
handle.detach()
dist.destroy_process_group()
