"""Two gloo ranks with DDP, masked language modelling on a streamed (iterable) corpus, bf16 autocast. FAULT from step 0: the stream is not split by
rank, both ranks read the same sentences in the same order with the same masks: the second rank adds nothing. Loss and gradients of both are equal
to the bit. Without Rangewatch: loss 4.20 to 3.50 at step 180, the printed losses of both ranks are the same to all six digits.
Report: huggingface/datasets#5360 (IterableDataset returns duplicated data using DDP), #3423, Lightning-AI/pytorch-lightning#15734.
Cause: data (both ranks have the same). Right: split by rank / a seed of its own. Wrong: learning rate, precision, mask, replicas that differ."""
EXPECT = {"cause": ["data"], "step": [0, 199], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "bfloat16", "GradScaler", "leave out samples", "broadcast"],
          "right": "same (data|batch|samples|input)|shard|split|sampler|DistributedSampler|rank|seed"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0); torch.set_num_threads(1)
VOCAB, LENGTH, MASK = 60, 20, 0
follows = torch.stack([torch.randperm(VOCAB - 1) + 1 for _ in range(2)])


class Corpus(IterableDataset):
    def __iter__(self):
        gen = torch.Generator().manual_seed(42)
        while True:
            words = [int(torch.randint(1, VOCAB, (1,), generator=gen))]
            for coin in torch.rand(LENGTH - 1, generator=gen).tolist():
                words.append(int(follows[int(coin < 0.15), words[-1] - 1]))
            ids = torch.tensor(words)
            hidden = torch.rand(LENGTH, generator=gen) < 0.2
            yield ids.masked_fill(hidden, MASK), ids.masked_fill(~hidden, -100)


class Encoder(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, d), nn.Parameter(0.02 * torch.randn(LENGTH, d))
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(d, 4, 96, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2)])
        self.out = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, VOCAB))

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


ddp = nn.parallel.DistributedDataParallel(Encoder())
optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-3, weight_decay=0.01)
watch = rangewatch.attach(ddp, optimizer)
for step, (ids, labels) in enumerate(DataLoader(Corpus(), batch_size=16)):
    if step == 200:
        break
    with torch.autocast("cpu", torch.bfloat16):
        logits = ddp(ids)
    loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 20 == 0:
        print(rank, step, round(loss.item(), 6), flush=True)
dist.destroy_process_group()
