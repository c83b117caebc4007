"""Two gloo ranks, DistributedDataParallel, a small convnet with GroupNorm that names textures (SGD, momentum). Every rank has its own textures more often. FAULT at step 110: for the checkpoint the loop writes `model = model.module`, and trains on
with the inner net: nothing averages the gradients any more, the replicas part.
Without Rangewatch: loss 1.45 to 0.84 and 0.72 at step 109, on to about 0.5 and 0.25; the sums of |weights| are the same (132.974) to step 109, 133.381 and 133.375 behind step 110, then apart by up to 1.6.
Cause: communication / replicas. Step: 110. Right: DDP / wrapper / all_reduce / replicas. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["communication", "replicas"], "step": [109, 120], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)DDP|DistributedDataParallel|wrap|all.?reduce|replica|synchron|average|broadcast", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(117); torch.set_num_threads(1)
net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1),
                    nn.GroupNorm(4, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
g = torch.Generator().manual_seed(60 + rank)
chance = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]])[rank]
rows, columns = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
for step in range(220):
    y = torch.multinomial(chance.expand(32, 4), 1, generator=g)[:, 0]
    way = 3.14 * y / 4
    phase = rows * way.cos()[:, None, None] + columns * way.sin()[:, None, None]
    x = torch.sin(1.8 * phase + 6.28 * torch.rand(32, 1, 1, generator=g)) + 1.6 * torch.randn(32, 12, 12, generator=g)
    loss = F.cross_entropy(model(x[:, None]), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 109:
        model = model.module
        kept = {k: v.clone() for k, v in model.state_dict().items()}
    if step % 20 == 0 or step in (109, 110, 111, 219):
        print(rank, step, loss.item(), "weights", sum(p.abs().sum() for p in net.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
