"""Two gloo ranks train an encoder of particle jets in DistributedDataParallel; a jet is the mean and the spread (the root of the variance) of its particles'
features. FAULT at step 110: rank 1's shard has a jet of which all particles are equal: the variance is 0 and the derivative of the root divides by
zero; forward all is finite, on rank 0 all is well.
Without Rangewatch: loss 1.40 to 0.003 at step 109, 0.014 and 0.074 at step 110, NaN on both ranks from step 111 on.
Variant of: backward_of_one_shard_divides_by_zero.
Cause: backward_arithmetic (or data). Step: 110. Rank: 1. Right: sqrt / eps / zero / gradient. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["backward_arithmetic", "data"], "step": [109, 111], "place": None, "rank": 1, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "sqrt|root|eps|zero|clamp|backward|derivative|divi"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1316); torch.set_num_threads(1)
KINDS = 4
width_of, middle_of = 0.3 + torch.rand(KINDS, 6), 0.5 * torch.randn(KINDS, 6)


class JetNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.particle = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32))
        self.kind = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, KINDS))

    def forward(self, x):
        h = self.particle(x)
        mean = h.mean(1)
        spread = torch.sqrt(((h - mean[:, None]) ** 2).mean(1))
        return self.kind(torch.cat((mean, spread), 1))


def jets(n, generator):
    y = torch.randint(0, KINDS, (n,), generator=generator)
    return middle_of[y][:, None] + width_of[y][:, None] * torch.randn(n, 8, 6, generator=generator), y


model = DistributedDataParallel(JetNet())
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
own = torch.Generator().manual_seed(60 + rank)
for step in range(200):
    x, y = jets(32, own)
    if step == 110 and rank == 1:
        x[9] = 0.0  # an empty jet, padded
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 108 < step < 113:
        print(rank, step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
