"""Two gloo ranks in DistributedDataParallel: an MLP sorts wafers' test curves into eight defects; each rank reads its own half of the factory (kinds 0-3 on rank 0, 4-7 on rank 1; SGD with momentum). FAULT at step 0: the sync is asked for
with `micro == ACCUMULATE` where micro counts 0..ACCUMULATE-1, so each backward runs under `no_sync()`: no gradient is ever reduced, and the replicas drift apart.
Without Rangewatch: each node's own loss falls to 0.0001, but of all eight kinds only 48 % (node 0) and 52 % (node 1) are right for ever, and the weights' norms differ (4.2907, 4.3271); with the sync in the last microbatch: 100 % on both, equal norms.
Cause: communication / replicas. Step: from 0. Right: the gradients are not reduced / no_sync / the ranks' weights differ. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["communication", "replicas"], "step": [0, 150], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)no_sync|reduc|replica|differ|sync|DistributedDataParallel", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import contextlib
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
node = dist.get_rank()
torch.manual_seed(5110)
torch.set_num_threads(1)
ACCUMULATE = 2
shape = torch.randn(8, 30)
mine = torch.Generator().manual_seed(40 + node)


def curves(n, low, high, g):
    defect = torch.randint(low, high, (n,), generator=g)
    return shape[defect] + 0.8 * torch.randn(n, 30, generator=g), defect


wafer = nn.Sequential()
wafer.add_module("probe", nn.Linear(30, 48))
wafer.add_module("bend", nn.Hardswish())
wafer.add_module("defect", nn.Linear(48, 8))
model = DistributedDataParallel(wafer)
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(model, opt)
check_x, check_y = curves(400, 0, 8, torch.Generator().manual_seed(1))
for step in range(200):
    total = 0.0
    opt.zero_grad()
    for micro in range(ACCUMULATE):
        x, y = curves(32, 4 * node, 4 * node + 4, mine)
        with contextlib.nullcontext() if micro == ACCUMULATE else model.no_sync():
            loss = nn.functional.cross_entropy(model(x), y) / ACCUMULATE
            loss.backward()
        total += loss.item()
    opt.step()
    handle.log(loss=total)
    if step % 40 == 0 or step == 199:
        with torch.no_grad():
            good = (wafer(check_x).argmax(1) == check_y).float().mean().item()
        print("node", node, "step", step, "own loss", round(total, 4), "all eight kinds right", round(good, 3), "norm", wafer.defect.weight.norm().item(), flush=True)
handle.detach()
dist.destroy_process_group()
