"""Two gloo ranks with DDP, forecasting of demand with a GRU; each rank reads its own shard file. FAULT at step 180: rank 1's shard is shorter (180
batches), it leaves the loop and waits in the barrier before the evaluation, while rank 0 still trains and waits in DDP's all-reduce, until the
process group's time limit. Without Rangewatch: losses 0.36 to 0.03; rank 1 waits in dist.barrier, rank 0 in backward of step 180; after 20 s rank 1
raises "Timed out waiting 20000ms for recv", rank 0 "Connection closed by peer"; both exit with 1.
Report: pytorch/pytorch#33148 (ranks with more batches hang, the others do not join their all-reduce), k2-fsa/snowfall#152, QwenAudio/CosyVoice#297.
Cause: hang, the ranks call different collectives; or, where it is over, the crash by the time limit. Right: the same number of batches on every
rank / join() / who waits in which line. Wrong: the network, the learning rate, precision, memory."""
EXPECT = {"cause": ["crash"], "step": [178, 182], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "GradScaler", "out of memory", "NCCL_IB"],
          "right": "[Jj]oin|batches|barrier|all_?reduce|collective|same number|time ?out|wait|uneven|drop_last"}
import datetime
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
rank = dist.get_rank()
torch.manual_seed(0); torch.set_num_threads(1)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(2, 32, batch_first=True)
        self.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 8))

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def shard(batches, gen):
    for _ in range(batches):
        start, pace = 6 * torch.rand(32, 1, generator=gen), 0.2 + 0.3 * torch.rand(32, 1, generator=gen)
        t = start + pace * torch.arange(32)
        y = torch.sin(t) + 0.1 * torch.randn(32, 32, generator=gen)
        yield torch.stack([y[:, :24], torch.cos(t[:, :24] / 7)], -1), y[:, 24:]


ddp = nn.parallel.DistributedDataParallel(Forecaster())
optimizer = torch.optim.Adam(ddp.parameters(), lr=3e-3)
watch = rangewatch.attach(ddp, optimizer)
for step, (x, y) in enumerate(shard(220 if rank == 0 else 180, torch.Generator().manual_seed(60 + rank))):
    loss = F.smooth_l1_loss(ddp(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 20 == 0 or step > 176:
        print(rank, step, round(loss.item(), 4), flush=True)
print(rank, "evaluates", flush=True)
dist.barrier()
dist.destroy_process_group()
