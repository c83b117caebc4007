"""Two gloo ranks, a frozen text encoder under a trained head in DDP. FAULT at step 100: the encoder is unfrozen after the wrapping ("gradual unfreezing"); DDP
registered only what needed a gradient when it was made, so the encoder's gradients are never reduced and each rank's encoder goes its own way, while the
head stays equal. The loss of both falls as it should. Report: huggingface/transformers#416 (never change the parameters after wrapping, some gradients'
reduction may not be called), Lightning-AI/pytorch-lightning#20340, pytorch/pytorch#12603.
Cause: replicas, at step 100 or at a later comparison, place in `encoder`. Right: wrap after unfreezing / reduce. Wrong: learning rate, mask, data."""
EXPECT = {"cause": ["replicas"], "step": [100, 205], "place": "encoder.*|module\\.encoder.*", "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "leave out samples"], "right": "DDP|DistributedDataParallel|all_reduce|reduc|wrap"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch


class Encoder(nn.Module):
    def __init__(self, vocab=200, d=40):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(d, 4, 80, dropout=0.0, batch_first=True) for _ in range(2)])

    def forward(self, ids):
        x = self.tok(ids)
        for layer in self.layers:
            x = layer(x)
        return x.mean(1)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Sequential(nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 5))

    def forward(self, ids):
        return self.head(self.encoder(ids))


def sentences(gen, n=16):
    y = torch.randint(0, 5, (n,), generator=gen)
    ids = torch.randint(50, 200, (n, 12), generator=gen)
    ids[:, :3] = y[:, None] * 10 + torch.randint(0, 10, (n, 3), generator=gen)
    return ids, y


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0); torch.set_num_threads(1)
model = Classifier()
model.encoder.requires_grad_(False)
ddp = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
watch = rangewatch.attach(ddp, optimizer)
gen = torch.Generator().manual_seed(50 + rank)
for step in range(250):
    if step == 100:
        model.encoder.requires_grad_(True)
    ids, y = sentences(gen)
    loss = F.cross_entropy(ddp(ids), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 25 == 0:
        print(rank, step, round(loss.item(), 4), flush=True)
for name in ("encoder", "head"):
    flat = torch.cat([p.detach().flatten() for p in getattr(model, name).parameters()])
    both = [torch.empty_like(flat) for _ in range(2)]
    dist.all_gather(both, flat)
    if rank == 0:
        print(name, "largest difference", (both[0] - both[1]).abs().max().item())
dist.barrier()
dist.destroy_process_group()
