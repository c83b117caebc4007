"""Two gloo ranks, a graph net, uneven data: rank 0 has 48 graphs a step, rank 1 two to twelve noisier ones; gradients are weighted by rows and summed by
hand, as it should be. Rank 1's loss goes up and down a thousandfold for it is a mean of so few. HEALTHY.
Without Rangewatch: losses 1.43 and 1.43 to 0.008 on rank 0, 0.002 to 2.1 on rank 1; weights are the same to the last bit."""
EXPECT = {"healthy": True, "ranks": 2}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(841); torch.set_num_threads(1)
NODES, KINDS = 30, 4
mood = torch.randn(KINDS, 8)


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward, self.message, self.out = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, KINDS)

    def forward(self, x, edges):
        h = F.relu(self.inward(x))
        degree = edges.sum(-1, keepdim=True).clamp(min=1)
        h = h + F.relu(self.message(edges @ h / degree))
        return self.out(h.mean(1))


model = GraphNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
own = torch.Generator().manual_seed(500 + rank)
for step in range(220):
    rows = 48 if rank == 0 else int(torch.randint(2, 13, (1,), generator=own))  # rank 1 has the small, noisy hospital
    kind = torch.randint(0, KINDS, (rows,), generator=own)
    x = mood[kind][:, None] * 0.5 + (1.0 + 0.7 * rank) * torch.randn(rows, NODES, 8, generator=own)
    edges = (torch.rand(rows, NODES, NODES, generator=own) < 0.1).float()
    loss = F.cross_entropy(model(x, edges), kind)
    optimizer.zero_grad()
    loss.backward()
    count = torch.tensor([float(rows)])
    total = count.clone()
    dist.all_reduce(total)
    for p in model.parameters():  # a mean over rows, not over ranks
        p.grad *= count / total
        dist.all_reduce(p.grad)
    optimizer.step()
    if step % 20 == 0 or step == 219:
        weight = model.out.weight.detach().clone()
        other = weight.clone()
        dist.broadcast(other, 0)
        print(rank, step, loss.item(), "rows", rows, "apart by", (weight - other).abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
