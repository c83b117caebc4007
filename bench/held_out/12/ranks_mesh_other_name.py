"""Two gloo ranks train an autoencoder of spectra under FSDP2 on a mesh of 2 x 1 ("replicate", "shard"). FAULT from step 0 on: fully_shard gets mesh["shard"],
the axis with one rank, not the whole mesh: nothing is reduced over the two, each trains on its own rows, and the parameters go apart.
Without Rangewatch: losses 0.93 and 1.05 to 0.010; one weight is 0.11956 on both ranks at step 0, 0.240 and 0.232 at step 40.
Variant of: sharded_over_the_axis_of_one_rank.
Cause: replicas (communication). Step: 0, seen soon after. Right: mesh / axis / dimension / group / gradients are not averaged. Wrong: rate, mask."""
EXPECT = {"cause": ["replicas", "communication"], "step": [0, 60], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "mesh|axis|dimension|group|averag|reduce|synchron"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1218); torch.set_num_threads(1)
pure = torch.randn(4, 32)
encoder = nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 4))
decoder = nn.Sequential(nn.Linear(4, 48), nn.GELU(), nn.Linear(48, 32))
model = nn.Sequential(encoder, decoder)
mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
for part in (encoder, decoder, model):
    fully_shard(part, mesh=mesh["shard"])  # mesh was meant
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
own = torch.Generator().manual_seed(70 + rank)
for step in range(220):
    share = torch.rand(32, 4, generator=own)
    x = share @ pure + 0.1 * torch.randn(32, 32, generator=own)
    loss = F.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0 or step == 219:
        print(rank, step, loss.item(), "weight", encoder[0].weight.full_tensor()[0, 0].item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
