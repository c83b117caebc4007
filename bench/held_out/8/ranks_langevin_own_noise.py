"""Two gloo ranks with DDP, a Bayesian net for a survey, trained by stochastic gradient Langevin dynamics: after each step noise is added to the
weights. FAULT from step 60 on, when the burn-in ends and the noise begins: each rank draws it from its own generator (seeded with its rank, for the
data), so that the replicas walk apart.
Without Rangewatch: loss 1.42 and 1.45 to 0.24 and 0.25; the first weight differs between the ranks by 0.0 up to step 59, 0.02 after step 60, 0.11
after step 100, 0.31 at the end.
Report: goodfire-ai/spd#412 (own seeds for each rank), horovod/horovod#1927 (may replicas diverge), huggingface/nanotron#242.
Cause: replicas. Step: 60. Right: rank / noise / seed / replica / synchronise. Wrong: learning rate, GradScaler, mask."""
EXPECT = {"cause": ["replicas"], "step": [59, 140], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "rank|replica|synchron|broadcast|differ|seed"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(823); torch.set_num_threads(1)
truth = nn.Sequential(nn.Linear(12, 30), nn.Tanh(), nn.Linear(30, 4))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(70 + rank)  # each rank its own rows
for step in range(260):
    x = torch.randn(64, 12)
    with torch.no_grad():
        y = (3 * truth(x)).argmax(1)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step >= 60:
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.004 * torch.randn_like(p))
    handle.log(loss=loss.item())
    if step % 20 == 0 or step == 259:
        other = model.module[0].weight.detach().clone()
        dist.broadcast(other, 0)
        print(rank, step, loss.item(), "from rank 0", (other - model.module[0].weight).abs().max().item(), flush=True)
handle.detach()
dist.destroy_process_group()
