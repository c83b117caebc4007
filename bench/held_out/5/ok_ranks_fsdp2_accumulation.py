"""Two gloo ranks with FSDP2 (blocks and root sharded), gradients of two microbatches added up with set_requires_gradient_sync(False) but for the last,
clipped by their norm over both ranks, a warmup and a linear decay. HEALTHY. Without Rangewatch: losses 3.7 to 0.6 on both."""
EXPECT = {"healthy": True, "ranks": 2}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(535); torch.set_num_threads(1)
VOCAB, D, T = 32, 32, 16


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
        self.blocks, self.norm, self.head = nn.ModuleList([Block(), Block()]), nn.LayerNorm(D), nn.Linear(D, VOCAB)

    def forward(self, ids):
        x = self.embed(ids) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


follows = torch.randint(0, VOCAB, (VOCAB, 2))
model, mesh = LM(), init_device_mesh("cpu", (2,))
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 20) * (1 - s / 180))
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(700 + rank)
for step in range(160):
    total = 0.0
    for micro in range(2):
        ids = torch.empty(8, T + 1, dtype=torch.long)
        ids[:, 0] = torch.randint(0, VOCAB, (8,))
        for t in range(T):
            ids[:, t + 1] = follows[ids[:, t], (torch.rand(8) < 0.25).long()]
        model.set_requires_gradient_sync(micro == 1)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()) / 2
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    handle.log(loss=total)
    if step % 20 == 0 or step == 159:
        print(rank, step, total, flush=True)
handle.detach()
dist.destroy_process_group()
