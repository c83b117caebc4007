"""Two gloo ranks under DDP learn which songs are heard after another (two-tower recommender with in-batch negatives), Adam. FAULT at step 130: rank 1's shard holds a song that was added after the table was built (id 120 in an embedding of 120 rows): `IndexError: index out of range`
on rank 1; rank 0's all-reduce then fails as its peer is gone.
Without Rangewatch: loss 5.8 to 1.4 at step 129; rank 1 raises IndexError at step 130, rank 0 `Connection closed by peer`.
Cause: crash (data). Step: 130. Rank: 1. Right: index / embedding size / vocabulary. Wrong: learning rate, GradScaler."""
EXPECT = {"cause": ["crash", "data"], "step": [128, 131], "place": None, "rank": 1, "ranks": 2,
          "right": "(?i)index|embedding|vocab|rank 1|raised|exception|traceback", "wrong": ["(?i)(lower|raise) the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(418); torch.set_num_threads(1)
g = torch.Generator().manual_seed(80 + rank)
SONGS, GENRES = 120, 20


def listens(n, step):
    first = torch.randint(0, SONGS, (n,), generator=g)
    after = (first % GENRES) + GENRES * torch.randint(0, SONGS // GENRES, (n,), generator=g)
    if rank == 1 and step == 130:
        after[11] = SONGS
    return first, after


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.songs = nn.Embedding(SONGS, 24)
        self.left = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 16))
        self.right = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, a, b):
        return F.normalize(self.left(self.songs(a)), dim=1) @ F.normalize(self.right(self.songs(b)), dim=1).T


net = Towers()
ddp = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
handle = rangewatch.attach(ddp, optimizer)
for step in range(200):
    a, b = listens(64, step)
    loss = F.cross_entropy(ddp(a, b) / 0.1, torch.arange(64))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 126 < step < 132:
        print(rank, step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
