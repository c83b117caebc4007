"""Two gloo ranks, a VQ autoencoder in DistributedDataParallel(broadcast_buffers=False) whose codebook is a buffer updated by moving averages of the
local batch. FAULT from step 0 on: nobody reduces the averages, so that each rank's codebook goes its own way and the shared encoder and decoder
serve two codebooks that drift apart. All is finite.
Without Rangewatch: loss 1.23 and 1.13 to 0.42 and 0.31; the codebooks differ by up to 0.33 after step 0, 2.9 after step 100, 4.9 at the end.
Report: lucidrains/vector-quantize-pytorch#17 (each replica has a different codebook), espnet/espnet#6284 (EMA from the local batch only),
ZhikangNiu/encodec-pytorch#15 (broadcast of buffers off).
Cause: replicas or communication. Step: 0. Right: buffers / codebook / reduce / ranks. Wrong: learning rate, GradScaler, mask."""
EXPECT = {"cause": ["replicas", "communication"], "step": [0, 100], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "buffer|codebook|reduc|rank|replica|synchron|broadcast|differ"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(724); torch.set_num_threads(1)
shapes = torch.randn(20, 32)


class Codebook(nn.Module):
    def __init__(self, codes=32, width=12, decay=0.9):
        super().__init__()
        self.decay = decay
        self.register_buffer("embed", torch.randn(codes, width))
        self.register_buffer("size", torch.ones(codes))
        self.register_buffer("total", self.embed.clone())

    def forward(self, z):
        index = torch.cdist(z.detach(), self.embed).argmin(1)
        q = self.embed[index]
        if self.training:
            with torch.no_grad():
                hot = F.one_hot(index, len(self.embed)).float()
                self.size.mul_(self.decay).add_(hot.sum(0), alpha=1 - self.decay)
                self.total.mul_(self.decay).add_(hot.T @ z, alpha=1 - self.decay)
                self.embed = self.total / self.size.clamp_min(1e-2)[:, None]
        return z + (q - z).detach(), F.mse_loss(z, q.detach()), index


class VQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 12))
        self.codebook = Codebook()
        self.decoder = nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 32))

    def forward(self, x):
        q, commit, index = self.codebook(self.encoder(x))
        return self.decoder(q), commit, index


model = nn.parallel.DistributedDataParallel(VQ(), broadcast_buffers=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(50 + rank)
for step in range(240):
    x = shapes[torch.randint(0, 20, (64,))] + 0.2 * torch.randn(64, 32)
    y, commit, index = model(x)
    loss = F.mse_loss(y, x) + 0.25 * commit
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        other = model.module.codebook.embed.clone()
        dist.broadcast(other, 0)
        print(rank, step, loss.item(), "from rank 0", (other - model.module.codebook.embed).abs().max().item(), flush=True)
handle.detach()
dist.destroy_process_group()
