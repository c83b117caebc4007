"""Two gloo ranks, an MLP for the price of houses wrapped with fully_shard. FAULT from the start: the mesh is (2, 1) with the axes (data, tensor), and the net is sharded over
`tensor`, which has one rank: nothing is sharded and no gradient is reduced over the two ranks; each trains a net of its own.
Without Rangewatch: loss 0.68 and 0.44 to 0.027 and 0.037; the sums of the weights are 8.71 and 9.29 after step 0, 10.7 and 5.9 at step 20, -53.6 and -50.7 at the end.
Cause: replicas or communication. Step: any. Right: mesh / axis / group / reduce / replicas. Wrong: GradScaler, lower the learning rate."""
EXPECT = {"cause": ["replicas", "communication"], "step": [0, 160], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)mesh|group|replica|reduc|rank|shard|averag", "wrong": ["[Ll]ower the learning rate", "GradScaler"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(6117); torch.set_num_threads(1)
mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "tensor"))


class House(nn.Module):
    def __init__(self):
        super().__init__()
        self.rooms = nn.Sequential(nn.Linear(9, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.price = nn.Linear(64, 1)

    def forward(self, x):
        return self.price(self.rooms(x))[:, 0]


net = House()
fully_shard(net.rooms, mesh=mesh["tensor"])
fully_shard(net, mesh=mesh["tensor"])
optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
handle = rangewatch.attach(net, optimizer)
mine = torch.Generator().manual_seed(500 + mesh.get_local_rank("data"))
for step in range(160):
    x = torch.randn(32, 9, generator=mine)
    y = torch.sin(x[:, 0]) + x[:, 1] * x[:, 2] / 2 + 0.1 * torch.randn(32, generator=mine)
    loss = F.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (1, 159):
        print(rank, step, loss.item(), "sum of weights", sum(p.full_tensor().sum() for p in net.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
