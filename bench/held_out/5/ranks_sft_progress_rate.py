"""Two gloo ranks with DDP, fine-tuning of a small causal model on packed conversations, SGD with momentum. FAULT from about step 119: the learning
rate falls with the progress through the rank's own data, and rank 1 packs more short conversations a step, so that its rate falls sooner: the same
gradients move the replicas apart. Without Rangewatch: the losses fall, 3.9 to about 0.6 on both; the rate is 0.1 on both until step 119; at the end
it is 0.07 on rank 0 and 0.003 on rank 1, and the weights are apart by 0.006 at step 140 and 0.04 at the end.
Report: karpathy/nanochat#857 (LR divergence across ranks in SFT: it is calculated from the progress of the rank's own loader),
rwth-i6/returnn#1493.
Cause: replicas, for another learning rate on each rank. Step: when they are compared. Right: learning rate / schedule / same on all ranks /
broadcast. Wrong: data, mask, GradScaler, bfloat16."""
EXPECT = {"cause": ["replicas", "learning_rate"], "step": [112, 239], "place": None, "rank": None, "ranks": 2,
          "wrong": ["GradScaler", "attention mask", "leave out samples", "bfloat16"],
          "right": "learning rate|schedul|broadcast|alike|same"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(513); torch.set_num_threads(1)
VOCAB, D, T, TOTAL = 40, 32, 24, 2400


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.qkv, self.out = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.norm2, self.mlp = nn.LayerNorm(D), nn.Sequential(nn.Linear(D, 96), nn.GELU(), nn.Linear(96, D))

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (4, 8)).transpose(1, 2) for each in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCAB, D), nn.Parameter(0.1 * torch.randn(T, D))
        self.blocks, self.norm, self.head = nn.Sequential(Block(), Block()), nn.LayerNorm(D), nn.Linear(D, VOCAB)

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.embed(ids) + self.position)))


model = nn.parallel.DistributedDataParallel(LM())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
follows = torch.randint(0, VOCAB, (VOCAB, 2))
torch.manual_seed(400 + rank)
used = 0
for step in range(240):
    used += int(torch.randint(5, 9, (1,))) if rank == 0 else int(torch.randint(8, 13, (1,)))  # conversations in this step's rows
    progress = min(1.0, used / TOTAL)
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * min(1.0, 2 * (1 - progress))
    ids = torch.empty(8, T + 1, dtype=torch.long)
    ids[:, 0] = torch.randint(0, VOCAB, (8,))
    for t in range(T):
        ids[:, t + 1] = follows[ids[:, t], (torch.rand(8) < 0.3).long()]
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        mine = nn.utils.parameters_to_vector(model.parameters()).detach()
        other = mine.clone()
        dist.broadcast(other, 0)
        print(rank, step, loss.item(), optimizer.param_groups[0]["lr"], "apart", (mine - other).abs().max().item(), flush=True)
handle.detach()
dist.destroy_process_group()
