"""A recommender (two tables and an MLP) on two gloo ranks, gradients averaged by hand. FAULT at step 100 on rank 1: a bit of the exponent of one weight of the
tower flips in memory: 1e-2 becomes some 1e36; rank 1's loss is some 1e35, the average carries its gradients to rank 0.
Without Rangewatch: loss 0.70 to 0.34 and 0.30 at step 99; at step 100 0.33 on rank 0 and 2e35 on rank 1 (largest weight 0.55 and 3e37); rank 1
stays there, rank 0 goes to 1.4 at step 120 and to 24 at the end.
Cause: hardware or weight (changed outside the optimizer), replicas. Step: 100. Place: tower. Rank: 1. Right: memory / bit / hardware / outside.
Wrong: learning rate, attention mask."""
EXPECT = {"cause": ["hardware", "weight", "replicas"], "step": [99, 103], "place": "tower.*", "rank": 1, "ranks": 2,
          "right": "(?i)memory|bit|hardware|outside|ECC|flip|overwrit|device|machine", "wrong": ["[Ll]ower the learning rate", "attention mask", "GradScaler"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(2918); torch.set_num_threads(1)
taste, kind = torch.randn(80, 2), torch.randn(120, 2)


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(80, 16), nn.Embedding(120, 16)
        self.tower = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, u, i):
        a, b = self.users(u), self.items(i)
        return self.tower(torch.cat((a, b, a * b), 1))[:, 0]


net = Recommender()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
handle = rangewatch.attach(net, optimizer)
g = torch.Generator().manual_seed(61 + rank)
for step in range(160):
    u, i = torch.randint(0, 80, (256,), generator=g), torch.randint(0, 120, (256,), generator=g)
    liked = ((taste[u] * kind[i]).sum(1) > 0).float()
    if step == 100 and rank == 1:
        net.tower[0].weight.data.view(torch.int32)[17, 5] ^= 1 << 30
    loss = F.binary_cross_entropy_with_logits(net(u, i), liked)
    optimizer.zero_grad()
    loss.backward()
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world
    optimizer.step()
    if step % 20 == 0 or step in (99, 101, 102, 159):
        print(rank, step, loss.item(), "largest weight", net.tower[0].weight.abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
