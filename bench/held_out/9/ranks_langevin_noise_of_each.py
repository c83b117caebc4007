"""Two gloo ranks, a Bayesian net in DistributedDataParallel by stochastic gradient Langevin dynamics. FAULT from step 60 on: the burn-in is over and noise is
added to the weights after each update, from a generator of the rank's own: nobody adds the same, and the replicas walk apart. All is finite.
Without Rangewatch: losses 1.41 and 1.38 to 0.61 and 0.56; net[4].weight differs by 0 at step 59, 0.045 at step 60, 0.25 at step 100, 0.50 at the end.
Report: horovod/horovod#1398 (the right way to perturb weights: on rank 0, then broadcast), goodfire-ai/spd#412.
Cause: replicas. Step: 60. Right: ranks / differ / synchronise / broadcast / seed. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["replicas"], "step": [58, 120], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "rank|replica|differ|synchron|broadcast|seed|apart"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(821); torch.set_num_threads(1)
PATIENTS = 16
effect = torch.randn(PATIENTS, 4)


class Bayesian(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(PATIENTS, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 4))

    def forward(self, x):
        return self.net(x)


model = DistributedDataParallel(Bayesian())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
handle = rangewatch.attach(model, optimizer)
own = torch.Generator().manual_seed(100 + rank)  # for the data, which should differ
for step in range(200):
    x = torch.randn(48, PATIENTS, generator=own)
    y = (x @ effect + torch.randn(48, 4, generator=own)).argmax(1)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step >= 60:  # the burn-in is over: Langevin noise on the weights
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn(p.shape, generator=own), alpha=0.01)  # from the rank's own generator
    if step % 20 == 0 or 58 < step < 62 or step == 199:
        weight = model.module.net[4].weight.detach().clone()
        other = weight.clone()
        dist.broadcast(other, 0)
        print(rank, step, loss.item(), "apart by", (weight - other).abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
