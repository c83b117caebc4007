"""Two gloo ranks with DDP, a CTC speech model, gradients accumulated. FAULT: no_sync() is left at batch_idx % accum == 0, the optimizer steps at
(batch_idx + 1) % accum == 0. With accum = 1 both are the same; at step 100 accum becomes 2 (a larger batch for the second stage), and the
microbatch before each optimizer step is the one that is not reduced: each rank steps with its own gradients. Without Rangewatch: loss 6.2 to 0.26
at step 100 and 0.16 at the end on both ranks; the largest difference of a weight between the ranks at the end is 0.04.
Report: modelscope/FunASR#3472 (batch_idx % accum_grad synchronizes the first microbatch and suppresses the one of the optimizer's step),
speechbrain/speechbrain#2010.
Cause: replicas differ between ranks, from step 100 on. Right: reduce in the last microbatch / no_sync. Wrong: learning rate, precision, mask, data."""
EXPECT = {"cause": ["replicas"], "step": [100, 205], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "GradScaler", "leave out samples"],
          "right": "no_sync|reduc|all_reduce|DDP|DistributedDataParallel|synchron|accumul"}
import contextlib
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(5); torch.set_num_threads(1)
PHONES, FRAMES = 12, 36
sound = torch.randn(PHONES, 16)


class Speech(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.subsample = nn.Sequential(nn.Conv1d(16, d, 3, 2, 1), nn.GELU())
        self.rnn = nn.GRU(d, d, batch_first=True, bidirectional=True)
        self.ctc = nn.Linear(2 * d, PHONES)

    def forward(self, x):
        return self.ctc(self.rnn(self.subsample(x.transpose(1, 2)).transpose(1, 2))[0]).log_softmax(-1)


def utterances(gen, n=8, length=5):
    phones = torch.randint(1, PHONES, (n, length), generator=gen)
    x = sound[phones].repeat_interleave(FRAMES // length, 1)
    x = F.pad(x, (0, 0, 0, FRAMES - x.shape[1]))
    return x + 0.5 * torch.randn(x.shape, generator=gen), phones


ddp = nn.parallel.DistributedDataParallel(Speech())
optimizer = torch.optim.AdamW(ddp.parameters(), lr=2e-3)
watch = rangewatch.attach(ddp, optimizer)
gen, batch_idx, step = torch.Generator().manual_seed(80 + rank), 0, 0
while step < 220:
    accum = 1 if step < 100 else 2
    with contextlib.nullcontext() if batch_idx % accum == 0 else ddp.no_sync():
        x, phones = utterances(gen)
        logp = ddp(x).transpose(0, 1)
        lengths = torch.full((len(x),), logp.shape[0])
        loss = F.ctc_loss(logp, phones, lengths, torch.full_like(lengths, phones.shape[1])) / accum
        loss.backward()
    if (batch_idx + 1) % accum == 0:
        nn.utils.clip_grad_norm_(ddp.parameters(), 5.0)
        watch.log(loss=loss.item() * accum)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            print(rank, step, round(loss.item() * accum, 4), flush=True)
        step += 1
    batch_idx += 1
flat = torch.cat([p.detach().flatten() for p in ddp.parameters()])
both = [torch.empty_like(flat) for _ in range(2)]
dist.all_gather(both, flat)
print(rank, "largest difference", (both[0] - both[1]).abs().max().item())
dist.barrier(); dist.destroy_process_group()
