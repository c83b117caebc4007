"""Two gloo ranks under DDP, each with a prefetching thread. FAULT at step 120: rank 1's thread waits for a lock that nobody gives back; its main thread stands in
`queue.get`, and rank 0 in the all_reduce of step 120 until the process group's time limit (12 s) ends it. Rank 1's own wait ends after 25 s. The one to
look at is rank 1, though rank 0 is the first to raise. Report: pytorch/pytorch#87995 (one rank hangs in the data loader's queue.get, all others wait in
the all_reduce), pytorch/pytorch#1355. Cause: crash (a rank that does not go on), step 120, rank 1. Right: rank 1's data loading / its stack. Wrong: learning
rate, mask, a longer timeout alone."""
EXPECT = {"cause": ["crash"], "step": [118, 121], "place": None, "rank": 1, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "leave out samples"], "right": "load|queue|stack|data|waits?\\b"}
import datetime
import queue
import threading
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

WAIT_S = 25


class Prefetcher(threading.Thread):
    def __init__(self, rank, lock):
        super().__init__(daemon=True)
        self.rank, self.lock, self.ready = rank, lock, queue.Queue(maxsize=2)
        self.gen = torch.Generator().manual_seed(7 + rank)

    def run(self):
        count = 0
        while True:
            if self.rank == 1 and count == 120:
                self.lock.acquire()      # of a writer that was interrupted
            y = torch.randint(0, 8, (16,), generator=self.gen)
            x = CENTRES[y] + torch.randn(16, 24, generator=self.gen)
            self.ready.put((x, y))
            count += 1


dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=12))
rank = dist.get_rank()
torch.manual_seed(1); torch.set_num_threads(1)
CENTRES = torch.randn(8, 24)
model = nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))
ddp = nn.parallel.DistributedDataParallel(model)
opt = torch.optim.Adam(ddp.parameters(), 1e-3)
watch = rangewatch.attach(ddp, opt)
lock = threading.Lock()
lock.acquire()
source = Prefetcher(rank, lock)
source.start()
for step in range(240):
    x, y = source.ready.get(timeout=WAIT_S)
    loss = F.cross_entropy(ddp(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    watch.log(loss=loss.item())
    if step % 20 == 0:
        print(rank, step, round(loss.item(), 4), flush=True)
dist.destroy_process_group()
