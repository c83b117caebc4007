"""A net of residual MLP blocks, sharded over two gloo ranks with fully_shard (FSDP2), that names the colour of a spectrum. FAULT at step 90: the rate read
from a settings file without its exponent's sign is 1e12 for one step, on both ranks; AdamW moves each weight by about 1e11 and the next forward is NaN.
Without Rangewatch: loss 2.15 to 0.0003 at step 89, 0.0002 at step 90, NaN from step 91 on.
Causes: learning_rate. Right: learning rate. Wrong: GradScaler, mask, communication."""
EXPECT = {"cause": ["learning_rate"], "step": [89, 92], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)learning rate|\\blr\\b", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(2328); torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.wide, self.back = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.back(torch.nn.functional.silu(self.wide(self.norm(x))))


model = nn.Sequential(nn.Linear(31, 48), Block(48), Block(48), nn.Linear(48, 8))
mesh = init_device_mesh("cpu", (2,))
for layer in model:
    if isinstance(layer, Block):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
bands = torch.rand(8, 31)
torch.manual_seed(900 + rank)
for step in range(160):
    optimizer.param_groups[0]["lr"] = 1e12 if step == 90 else 2e-3
    y = torch.randint(0, 8, (32,))
    x = bands[y] * (0.5 + torch.rand(32, 1)) + 0.1 * torch.randn(32, 31)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 88 < step < 94:
        print(rank, step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
