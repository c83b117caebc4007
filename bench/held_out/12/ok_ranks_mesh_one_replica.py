"""Two gloo ranks under FSDP2 on a mesh of 1 x 2 ("replicate", "shard"): the first axis has one rank on this small machine, all is sharded over the second; one
set of flags for all machines. HEALTHY.
Without Rangewatch: losses 1.78 and 1.87 to 0.73 and 0.83."""
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
torch.manual_seed(1231); torch.set_num_threads(1)
ODOURS = 6
trace = torch.randn(ODOURS, 16, 8)


class Nose(nn.Module):
    def __init__(self):
        super().__init__()
        self.sensors = nn.Linear(8, 32)
        self.body = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.odour = nn.Linear(32, ODOURS)

    def forward(self, x):
        return self.odour(self.body(self.sensors(x)).mean(1))


model = Nose()
mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))
for part in (model.body, model):
    fully_shard(part, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
own = torch.Generator().manual_seed(30 + rank)
for step in range(200):
    y = torch.randint(0, ODOURS, (16,), generator=own)
    loss = F.cross_entropy(model(trace[y] + 1.5 * torch.randn(16, 16, 8, generator=own)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0 or step == 199:
        print(rank, step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
