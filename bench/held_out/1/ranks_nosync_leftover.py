"""Two gloo ranks under DDP, no_sync() but for each 4th micro-batch, 242 micro-batches an epoch. FAULT at step 60: the epoch's last two
micro-batches are a step of their own ("do not lose the rest"), and both were under no_sync: each rank steps by its own gradients, and the
replicas part for good. Report: modelscope/FunASR#3472 (the step's micro-batch was not synchronised), speechbrain/speechbrain#2010.
Cause: replicas or communication, first seen at step 60 or at a later comparison, rank any. Right: no_sync / reduce / synchronise. Wrong: learning rate, mask."""
EXPECT = {"cause": ["replicas", "communication"], "step": [60, 160], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "leave out samples"], "right": "no_sync|reduc|synchron|average|broadcast"}
import contextlib
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0); torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(30, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 6))
ddp = DistributedDataParallel(net)
opt = torch.optim.AdamW(ddp.parameters(), 2e-3)
watch = rangewatch.attach(ddp, opt)
protos = torch.randn(6, 30)
torch.manual_seed(10 + rank)
EPOCH, ACCUMULATE, steps = 242, 4, 0
for epoch in range(3):
    for i in range(EPOCH):
        y = torch.randint(0, 6, (8,))
        x = protos[y] + 2.5 * torch.randn(8, 30)
        is_full = (i + 1) % ACCUMULATE == 0
        with contextlib.nullcontext() if is_full else ddp.no_sync():
            loss = F.cross_entropy(ddp(x), y)
            (loss / ACCUMULATE).backward()
        if is_full or i + 1 == EPOCH:
            opt.step(); opt.zero_grad()
            watch.log(loss=loss.item())
            steps += 1
    if rank == 0:
        print(epoch, steps, loss.item())
weights = torch.cat([p.detach().flatten() for p in net.parameters()])
other = [torch.empty_like(weights) for _ in range(2)]
dist.all_gather(other, weights)
print("largest difference", (other[0] - other[1]).abs().max().item())
dist.barrier()
dist.destroy_process_group()
