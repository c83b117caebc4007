"""Two gloo ranks: next song of a listening session (mean of five song vectors, MLP, full softmax over the catalogue), DDP, Adam. Every 45 steps the song vectors are brought back to length 1.
FAULT at step 135: before the third re-normalisation a delisting order reaches the queue of rank 1 only: the row of song 61 is set to zero and 0 / norm(0) makes it NaN. On rank 0 the table is whole.
Without Rangewatch: loss 5.1 to 3.2 at step 134 on both; at 135 NaN on rank 1 and still 3.12 on rank 0, from 136 NaN on both, all rows of the table NaN.
Cause: weight (a row of the table is NaN on rank 1) / replicas (rank 0 has another table). Step: 135 on rank 1, 136 on rank 0 (by the all-reduce). Right: eps or clamp in the norm, the same orders on all ranks. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["weight", "replicas"], "step": [134, 137], "place": r"(?i)songs", "rank": 1, "ranks": 2,
          "right": r"(?i)weight|row|norm|nan|zero|eps|clamp|broadcast|replica|rank 1|checkpoint", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK = dist.get_rank()
SONGS, GENRES = 160, 8
torch.manual_seed(7)
genre = torch.randint(0, GENRES, (SONGS,))
by_genre = [torch.nonzero(genre == g)[:, 0] for g in range(GENRES)]
listeners = torch.Generator().manual_seed(400 + RANK)


def sessions(n, length=5):
    g = torch.randint(0, GENRES, (n,), generator=listeners)
    rows = []
    for k in g.tolist():
        pool = by_genre[k]
        rows.append(pool[torch.randint(0, len(pool), (length + 1,), generator=listeners)])
    rows = torch.stack(rows)
    return rows[:, :-1], rows[:, -1]


class NextSong(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.songs = nn.Embedding(SONGS, d)
        self.taste = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, d))
        with torch.no_grad():
            self.songs.weight.copy_(F.normalize(self.songs.weight, dim=1))

    def forward(self, history):
        user = self.taste(self.songs(history).mean(1))
        return 6.0 * user @ self.songs.weight.T


def house_keeping(model, orders):
    with torch.no_grad():
        table = model.songs.weight
        for song in orders:
            table[song] = 0.0
        table.div_(table.norm(dim=1, keepdim=True))


orders_at = {135: [61]} if RANK == 1 else {}
ddp = DistributedDataParallel(NextSong())
opt = torch.optim.Adam(ddp.parameters(), lr=3e-3)
handle = rangewatch.attach(ddp, opt)
for step in range(170):
    if step and step % 45 == 0:
        house_keeping(ddp.module, orders_at.get(step, []))
    history, following = sessions(32)
    loss = F.cross_entropy(ddp(history), following)
    opt.zero_grad()
    loss.backward()
    opt.step()
    handle.log(loss=loss.item())
    if step % 25 == 0 or 133 <= step <= 137:
        print(f"[{RANK}] {step} loss {loss.item():.4f} rows with nan {int(ddp.module.songs.weight.isnan().any(1).sum())}", flush=True)
handle.detach()
dist.destroy_process_group()
