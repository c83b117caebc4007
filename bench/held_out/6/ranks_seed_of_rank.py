"""Two gloo ranks that average gradients by hand with all_reduce. FAULT from step 0 on: each seeds with its rank before the model is built, and nobody
broadcasts: they start from different weights, and equal updates keep the difference. All is finite and both losses go down.
Without Rangewatch: loss 0.50 and 0.50 to 0.045 and 0.041; the largest difference of out.weight between ranks is 0.2211 from step 0 to step 199.
Report: sparticlesteve/pytorch-benchmarks#1 and Lightning-AI/pytorch-lightning#6013 (about different weights at the start; DDP broadcasts and is safe,
a loop by hand is not: the analogy is loose in that).
Cause: replicas. Step: 0. Right: broadcast / seed. Wrong: learning rate, attention mask, GradScaler."""
EXPECT = {"cause": ["replicas"], "step": [0, 30], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "broadcast|seed|rank|replica|initial"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(622); torch.set_num_threads(1)
truth = torch.randn(12, 3)
torch.manual_seed(622 + rank)  # "each worker gets its own seed", and nothing is broadcast afterwards


class Cosmo(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 64), nn.LeakyReLU(0.1), nn.Linear(64, 64), nn.LeakyReLU(0.1))
        self.out = nn.Linear(64, 3)

    def forward(self, x):
        return self.out(self.body(x))


model = Cosmo()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x = torch.randn(32, 12)
    loss = F.mse_loss(model(x), torch.tanh(x @ truth / 3))
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= 2
    optimizer.step()
    if step % 20 == 0 or step == 199:
        mine = model.out.weight.detach().clone()
        other = mine.clone()
        dist.broadcast(other, 0)
        print(rank, step, loss.item(), "from rank 0", (mine - other).abs().max().item(), flush=True)
handle.detach()
dist.destroy_process_group()
