"""Two gloo ranks with FSDP2, a causal transformer. FAULT from step 0: the mesh is (2, 1) and the model is sharded over the axis of size 1, where there is
nothing to shard and no gradient is reduced: both ranks train alone on their own data and grow apart. Without Rangewatch: loss 4.0 to
1.3 and 1.6; weights are equal before step 0, 0.004 apart after it and 0.15 apart at the end.
Report: verl-project/verl#7493 (fsdp_size=1 disables gradient synchronisation silently).
Cause: replicas, or communication. Right: all-reduce / not synchronised / mesh / broadcast / replicate. Wrong: learning rate, precision, mask."""
EXPECT = {"cause": ["replicas", "communication"], "step": [0, 20], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "bfloat16", "GradScaler", "leave out samples", "[Mm]ask\\b"],
          "right": "reduc|sync|mesh|replicat|broadcast|average"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(97); torch.set_num_threads(1)
VOCAB, N, D = 48, 16, 32


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, D), nn.Embedding(N, D)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(D, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2)])
        self.norm, self.head, self.mask = nn.LayerNorm(D), nn.Linear(D, VOCAB), nn.Transformer.generate_square_subsequent_mask(N)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(N))
        for layer in self.layers:
            x = layer(x, src_mask=self.mask)
        return self.head(self.norm(x))


model = Model()
mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("ddp", "fsdp"))
for layer in model.layers:
    fully_shard(layer, mesh=mesh["fsdp"])
fully_shard(model, mesh=mesh["fsdp"])
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
watch = rangewatch.attach(model, optimizer)
gen = torch.Generator().manual_seed(20 + rank)
for step in range(140):
    ids = torch.randint(0, VOCAB, (16, N + 1), generator=gen)
    for k in range(1, N + 1):
        ids[:, k] = torch.where(torch.rand(16, generator=gen) < 0.2, ids[:, k], (ids[:, k - 1] * 5 + 3) % VOCAB)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 20 == 0 or step in (1, 139):
        mine = torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])
        other = mine.clone()
        dist.broadcast(other, 0)
        print(rank, step, round(loss.item(), 4), "apart", round((mine - other).abs().max().item(), 5), flush=True)
dist.barrier(); dist.destroy_process_group()
