"""HEALTHY: two gloo ranks under DDP, tagging with a masked loss normalised by the tokens of both ranks; rank 1 runs out of data at the end of an epoch
and then has only padding (its gradients are exactly zero for 3 steps of 25); accumulation with no_sync done right; 200 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None, "ranks": 2}
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

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.rnn, self.out = nn.Embedding(60, 32, padding_idx=0), nn.GRU(32, 32, batch_first=True, bidirectional=True), nn.Linear(64, 7)
    def forward(self, ids):
        return self.out(self.rnn(self.tok(ids))[0])

ddp = DistributedDataParallel(Tagger())
opt = torch.optim.AdamW(ddp.parameters(), 2e-3)
watch = rangewatch.attach(ddp, opt)
torch.manual_seed(30 + rank)
for step in range(200):
    micro = []
    for _ in range(2):
        ids = torch.randint(1, 60, (8, 12)).masked_fill(torch.arange(12) >= torch.randint(3, 13, (8, 1)), 0)
        if rank == 1 and step % 25 >= 22:
            ids = torch.zeros_like(ids)
        micro.append((ids, ((ids + ids.roll(1, 1)) % 7).masked_fill(ids == 0, -100)))
    tokens = torch.tensor(float(sum((labels != -100).sum() for _, labels in micro)))
    dist.all_reduce(tokens)
    total = 0.0
    for i, (ids, labels) in enumerate(micro):
        with ddp.no_sync() if i == 0 else contextlib.nullcontext():
            loss = F.cross_entropy(ddp(ids).flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum") * dist.get_world_size() / tokens
            loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
    opt.step(); opt.zero_grad()
    watch.log(loss=total)
    if step % 25 == 0 and rank == 0:
        print(step, total)
dist.barrier()
dist.destroy_process_group()
