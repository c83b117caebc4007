"""Two gloo ranks in a device mesh of data 2 by tensor 1; a GRU learns the next letter of a text. FAULT from step 0: the DistributedSampler gets size and
rank of the mesh's "tensor" axis, which has one rank, instead of the "data" axis: both ranks read the same windows of the text in the same order, and the
second rank adds nothing.
Without Rangewatch: 2.9006 at step 0, 1.9515 at 40, 1.7990 at the end, the same on both ranks in every digit at every step.
Variant of: pictures_are_sharded_over_the_axis_of_one_rank.
Cause: data (both ranks' batches are the same). Step: 0. Right: sampler / shard / same batch / num_replicas. Wrong: rate, GradScaler, mask."""
EXPECT = {"cause": ["data", "replicas"], "step": [0, 110], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "[Ss]ampler|shard|same (batch|data|input|rows)|num_replicas|identical|mesh"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1301); torch.set_num_threads(1)
mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "tensor"))
LETTERS = 18
follows = (2.0 * torch.randn(LETTERS, LETTERS)).softmax(1)


class Text(Dataset):
    def __init__(self, n=1600, length=24):
        self.rows = torch.empty(n, length, dtype=torch.long)
        self.rows[:, 0] = torch.randint(0, LETTERS, (n,))
        for t in range(1, length):
            self.rows[:, t] = torch.multinomial(follows[self.rows[:, t - 1]], 1)[:, 0]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class LetterGru(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter = nn.Embedding(LETTERS, 24)
        self.gru = nn.GRU(24, 48, batch_first=True)
        self.next = nn.Linear(48, LETTERS)

    def forward(self, x):
        return self.next(self.gru(self.letter(x))[0])


text = Text()
model = DistributedDataParallel(LetterGru())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
axis = mesh["tensor"]  # meant: mesh["data"]
sampler = DistributedSampler(text, num_replicas=axis.size(), rank=axis.get_local_rank(), shuffle=True, seed=5)
loader = DataLoader(text, batch_size=16, sampler=sampler, drop_last=True)
handle = rangewatch.attach(model, optimizer)
step = 0
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x in loader:
        if step == 220:
            break
        loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == 219:
            print(rank, step, loss.item(), flush=True)
        handle.log(loss=loss.item())
        step += 1
handle.detach()
dist.destroy_process_group()
