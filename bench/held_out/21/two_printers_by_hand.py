"""Two ranks train a gated recurrent net that foretells the drift of a printer's nozzle; the gradients are averaged by all_reduce by hand. FAULT at step 0: each rank seeds torch
with its own number before it builds the net, and nobody broadcasts the weights: two different nets are moved by the mean of their gradients.
Without Rangewatch: loss 1.13 to 0.05; the distance of the two ranks' weights is 10.94 at each step (their norm is 7.8 to 11.9).
Cause: replicas. Step: 0 to the end, a state. Right: broadcast / seed / replicas / same weights. Wrong: GradScaler, lower the learning rate, mask."""
EXPECT = {"cause": ["replicas"], "step": [0, 179], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)broadcast|seed|replica|rank|weights|parameters", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.distributed as dist
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(2119 + rank)
torch.set_num_threads(1)


class Drift(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = nn.GRU(4, 40, batch_first=True)
        self.drift = nn.Sequential(nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 2))

    def forward(self, x):
        return self.drift(self.memory(x)[1][0])


def passes(n):
    heat = torch.rand(n, 1, 1)
    steps = torch.randn(n, 15, 2) * 0.2 + torch.cat((heat, -heat), 2) * 0.1
    path = steps.cumsum(1)
    x = torch.cat((path, heat.expand(n, 15, 1), torch.ones(n, 15, 1)), 2)
    return x, path[:, -1] + torch.cat((heat, -heat), 2)[:, 0]


model = Drift()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    x, y = passes(24)
    loss = (model(x) - y).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world
    optimizer.step()
    if step % 20 == 0 or step == 179:
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        both = [torch.empty_like(flat) for _ in range(world)]
        dist.all_gather(both, flat)
        if rank == 0:
            print(step, loss.item(), "distance of the ranks", (both[0] - both[1]).norm().item(), "norm", flat.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
