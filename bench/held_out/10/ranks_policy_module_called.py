"""Two gloo ranks, a policy trained by REINFORCE in DistributedDataParallel. FAULT from step 0 on: the loss is computed through ddp.module(...), as
for the sampling, which goes round DDP's forward; the gradients are never averaged, and each rank trains a policy of its own.
Without Rangewatch: reward 0.16 and 0.28 to 0.98 and 1.00; the last layer's weights differ between the ranks by 0.006 after step 0, 0.034 after step 20,
0.10 at the end.
Report: jingyaogong/minimind#854 (the forward through .module: no all-reduce, the replicas diverge silently), moojink/openvla-oft#160,
k2-fsa/icefall#226.
Cause: replicas (or communication: no all-reduce). Step: 0. Right: module / forward of DDP / all-reduce / replicas differ. Wrong: rate, GradScaler."""
EXPECT = {"cause": ["replicas", "communication"], "step": [0, 60], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "rank|replica|synchron|all-?reduce|DDP|DistributedDataParallel|differ"}
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1022); torch.set_num_threads(1)
PLACES, MOVES = 6, 4
best = torch.randint(0, MOVES, (PLACES,))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(PLACES, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.move = nn.Linear(32, MOVES)

    def forward(self, x):
        return torch.distributions.Categorical(logits=self.move(self.body(x)))


model = DistributedDataParallel(Policy())
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
own = torch.Generator().manual_seed(600 + rank)
for step in range(200):
    place = torch.randint(0, PLACES, (64,), generator=own)
    x = torch.eye(PLACES)[place] + 0.1 * torch.randn(64, PLACES, generator=own)
    with torch.no_grad():
        chances = model.module(x).probs
        move = torch.multinomial(chances, 1, generator=own)[:, 0]
    reward = (move == best[place]).float() + 0.1 * torch.randn(64, generator=own)
    policy = model.module(x)  # and this one should be model(x)
    loss = -(policy.log_prob(move) * (reward - reward.mean())).mean() - 0.01 * policy.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (1, 199):
        weight = model.module.move.weight.detach().clone()
        other = weight.clone()
        dist.broadcast(other, 0)
        print(rank, step, loss.item(), "reward", reward.mean().item(), "apart by", (weight - other).abs().max().item(), flush=True)
    handle.log(loss=loss.item(), reward=reward.mean().item())
handle.detach()
dist.destroy_process_group()
