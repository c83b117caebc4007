"""Two gloo ranks with FSDP2 (fully_shard): rank 0 reads an easy domain, rank 1 a hard one and shorter batches, by design; gradients clipped over all
shards, the decay of the rate ends at 0. HEALTHY: the losses of the two ranks stay apart, rank 1 waits at times, each rank holds other rows of each
weight. Without Rangewatch: loss 3.94 to 0.61 on rank 0, 4.13 to 2.92 on rank 1."""
EXPECT = {"healthy": True, "ranks": 2}
import math
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(67); torch.set_num_threads(1)
VOCAB, N = 48, 16


class Model(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, d), nn.Embedding(N, d)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(d, 4, 96, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, VOCAB)
        self.mask = nn.Transformer.generate_square_subsequent_mask(N)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(N))
        for layer in self.layers:
            x = layer(x, src_mask=self.mask)
        return self.head(self.norm(x))


model = Model()
mesh = init_device_mesh("cpu", (2,))
for layer in model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 0.5 + 0.5 * math.cos(math.pi * min(s, 200) / 200))
watch = rangewatch.attach(model, optimizer)
gen = torch.Generator().manual_seed(90 + rank)
noise, rows = (0.05, 24) if rank == 0 else (0.5, 8)
for step in range(200):
    ids = torch.randint(0, VOCAB, (rows, N + 1), generator=gen)
    for k in range(1, N + 1):
        ids[:, k] = torch.where(torch.rand(rows, generator=gen) < noise, ids[:, k], (ids[:, k - 1] * 5 + 3 + rank) % VOCAB)
    ids[:, 0] = rank  # tells the domain
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(); schedule.step()
    watch.log(loss=loss.item())
    if step % 20 == 0 or step == 199:
        print(rank, step, round(loss.item(), 4), flush=True)
dist.barrier(); dist.destroy_process_group()
