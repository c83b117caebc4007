"""Two gloo ranks under DDP, a dataset that caches decoded samples in every process. FAULT at step 140: the machine runs out of memory and the kernel kills rank 1
with SIGKILL in the middle of a step (here the process sends it to itself): no traceback, no exit code of its own; rank 0 sees a closed connection in its
all_reduce and raises. Report: pytorch/pytorch#8976 (DDP run killed after hours without a word), pytorch/pytorch#43455 (the others lose the connection).
Cause: crash, step 140, rank 1. Right: killed / SIGKILL / memory of the host. Wrong: learning rate, mask, data."""
EXPECT = {"cause": ["crash"], "step": [138, 141], "place": None, "rank": 1, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "leave out samples"], "right": "SIGKILL|[Kk]illed|out of memory|OOM|dmesg|memory"}
import os
import signal
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
import rangewatch


class Cached(Dataset):
    def __init__(self):
        self.cache, self.reads = {}, 0

    def __len__(self):
        return 4096

    def __getitem__(self, i):
        if i not in self.cache:
            gen = torch.Generator().manual_seed(i)
            label = i % 7
            image = torch.randn(1, 10, 10, generator=gen)
            image[0, label] += 2.0
            self.cache[i] = (image, label)
        self.reads += 1
        if self.reads > 140 * 12 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.cache[i]


dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
net = nn.parallel.DistributedDataParallel(nn.Sequential(
    nn.Conv2d(1, 12, 3), nn.ReLU(), nn.Conv2d(12, 24, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 36, 7)))
opt = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9)
handle = rangewatch.attach(net, opt)
data = Cached()
loader = DataLoader(data, batch_size=12, sampler=DistributedSampler(data), num_workers=0)
step = 0
while step < 300:
    for x, y in loader:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        handle.log(loss=loss.item())
        if step % 20 == 0:
            print(dist.get_rank(), step, round(loss.item(), 4), flush=True)
        step += 1
