"""Two gloo ranks with DDP, a speech classifier with mean and variance normalisation per utterance. FAULT at step 110 on rank 1: an utterance of a
single frame; its unbiased variance over time is NaN before it enters the model, on rank 1 only; the reduced gradients carry it to rank 0 in the same step. Without Rangewatch: loss 1.6 to
0.02 at step 109; at step 110 NaN on rank 1, finite on rank 0; NaN on both from step 111 on.
Report: facebookresearch/fairseq#1863 (one spectrogram: everything is NaN by the normalization, loss always NaN), pyannote/pyannote-audio#2047.
Cause: data (NaN in the input). Rank: 1. Right: batch / input / frames / normalization / std. Wrong: learning rate, GradScaler, mask."""
EXPECT = {"cause": ["data"], "step": [110, 110], "place": None, "rank": 1, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "batch|input|sample|data|normali|std"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0); torch.set_num_threads(1)
FREQ, WORDS = 20, 5


class Speech(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.rnn, self.out = nn.Conv1d(FREQ, 32, 3, padding=1), nn.GRU(32, 32, batch_first=True), nn.Linear(32, WORDS)

    def forward(self, x):
        return self.out(self.rnn(self.conv(x.transpose(1, 2)).relu().transpose(1, 2))[0].mean(1))


shapes = torch.randn(WORDS, FREQ)
gen = torch.Generator().manual_seed(100 + rank)


def utterance(word, frames):
    x = shapes[word] * torch.linspace(0, 3, frames)[:, None] + 1.2 * torch.randn(frames, FREQ, generator=gen)
    x = (x - x.mean(0)) / (x.std(0) + 1e-5)
    return F.pad(x, (0, 0, 0, 30 - frames))


ddp = nn.parallel.DistributedDataParallel(Speech())
optimizer = torch.optim.AdamW(ddp.parameters(), lr=2e-3)
watch = rangewatch.attach(ddp, optimizer)
for step in range(140):
    words = torch.randint(0, WORDS, (16,), generator=gen)
    frames = torch.randint(12, 31, (16,), generator=gen).tolist()
    if step == 110 and rank == 1:
        frames[6] = 1
    x = torch.stack([utterance(w, f) for w, f in zip(words.tolist(), frames)])
    loss = F.cross_entropy(ddp(x), words)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 15 == 0 or 108 <= step < 113:
        print(rank, step, round(loss.item(), 4), flush=True)
dist.destroy_process_group()
