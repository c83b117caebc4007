"""Two gloo ranks, a recommender whose gradients are averaged by hand. FAULT from step 0 on: dist.reduce to rank 0 in place of all_reduce; rank 0 has the
mean, rank 1 has half of its own gradient or a part of the sum, and each Adam goes its own way. All is finite.
Without Rangewatch: losses 0.70 and 0.69 to 0.63 and 0.53; net[4].weight differs by 0.0037 after step 1, 0.042 at step 100, 0.073 at the end.
Report: pytorch/pytorch#76527 (what reduce leaves on the other ranks with gloo), pytorch/pytorch#21480, pytorch/tutorials#1926 (reduce where all_reduce is
meant).
Cause: communication or replicas. Step: 0 or 1. Right: reduce / ranks / synchronise. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["communication", "replicas"], "step": [0, 60], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "rank|reduc|replica|synchron|broadcast|differ"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(822); torch.set_num_threads(1)
USERS, FILMS = 60, 80
taste, kind = torch.randn(USERS, 4), torch.randn(FILMS, 4)


class NeuralCF(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.film = nn.Embedding(USERS, 16), nn.Embedding(FILMS, 16)
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, u, f):
        return self.net(torch.cat([self.user(u), self.film(f)], 1)).squeeze(1)


def average_gradients(model):
    for p in model.parameters():
        dist.reduce(p.grad, dst=0)  # all_reduce was meant
        p.grad /= world


model = NeuralCF()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
own = torch.Generator().manual_seed(200 + rank)
for step in range(220):
    u, f = torch.randint(0, USERS, (96,), generator=own), torch.randint(0, FILMS, (96,), generator=own)
    liked = ((taste[u] * kind[f]).sum(1) + 0.3 * torch.randn(96, generator=own) > 0).float()
    loss = F.binary_cross_entropy_with_logits(model(u, f), liked)
    optimizer.zero_grad()
    loss.backward()
    average_gradients(model)
    optimizer.step()
    if step % 20 == 0 or step < 3 or step == 219:
        weight = model.net[4].weight.detach().clone()
        other = weight.clone()
        dist.broadcast(other, 0)
        print(rank, step, loss.item(), "apart by", (weight - other).abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
