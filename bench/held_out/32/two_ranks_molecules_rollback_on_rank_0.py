"""Two gloo ranks under DDP guess a property of molecules (deep set of atoms), Adam. FAULT at step 130: a callback rolls the run back to the stored checkpoint, but inside `if rank == 0:` (as for saving): rank 0 gets the weights of step 30, rank 1 keeps its own. DDP sends the
weights only when it is built; from here on the replicas differ and step with a common gradient of two different nets.
Without Rangewatch: loss 1.3 to 0.15 to 0.3 at step 129; then 0.15 to 0.4; the sums of the weights are equal until step 129 and 0.25 apart from step 130 to the end.
Cause: replicas (checkpoint loaded on one rank). Step: 130. Right: load on all ranks / broadcast. Wrong: learning rate, GradScaler."""
EXPECT = {"cause": ["replicas"], "step": [129, 140], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)replica|broadcast|all ranks|every rank|each rank|checkpoint|synchron", "wrong": ["(?i)(lower|raise) the learning rate", "GradScaler", "attention mask"]}
import copy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(420); torch.set_num_threads(1)
weight_of = torch.randn(9, 3)
g = torch.Generator().manual_seed(60 + rank)


def molecules(n):
    atoms = torch.randint(0, 9, (n, 7), generator=g)
    s = weight_of[atoms].sum(1) / 7 ** 0.5
    return atoms, s[:, 0] * s[:, 1] + s[:, 2].sin()


class DeepSet(nn.Module):
    def __init__(self):
        super().__init__()
        self.atom = nn.Embedding(9, 24)
        self.phi = nn.Sequential(nn.Linear(24, 48), nn.Softplus(), nn.Linear(48, 48))
        self.rho = nn.Sequential(nn.Linear(48, 48), nn.Softplus(), nn.Linear(48, 1))

    def forward(self, atoms):
        return self.rho(self.phi(self.atom(atoms)).mean(1)).squeeze(1)


net = DeepSet()
ddp = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.Adam(ddp.parameters(), lr=4e-3)
saved = None
handle = rangewatch.attach(ddp, optimizer)
for step in range(220):
    if step == 30:
        saved = copy.deepcopy(net.state_dict())
    if step == 130 and rank == 0:
        net.load_state_dict(saved)
    x, y = molecules(48)
    loss = F.mse_loss(ddp(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 128 < step < 133 or step == 219:
        print(rank, step, loss.item(), "sum of weights", sum(p.sum() for p in net.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
