"""Two gloo ranks, manual all_reduce. FAULT at step 70: rank 1's batch has a token id beyond the vocabulary: IndexError in the embedding;
rank 0 then fails in its all_reduce (peer closed). Cause: crash, rank 1 (not rank 0!), step 70, exception IndexError.
Right: read rank 1's traceback. Wrong: out of memory, learning rate, communication as root, rank 0 as root."""
EXPECT = {"cause": ["crash"], "step": [69, 71], "place": None, "rank": 1, "ranks": 2,
          "wrong": ["learning rate", "[Mm]ask", "out of memory"], "right": "traceback|stack"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0); torch.set_num_threads(1)

class Bag(nn.Module):
    def __init__(self, vocab=80):
        super().__init__()
        self.emb, self.conv, self.out = nn.Embedding(vocab, 24), nn.Conv1d(24, 32, 3, padding=1), nn.Linear(32, 4)
    def forward(self, ids):
        return self.out(F.gelu(self.conv(self.emb(ids).mT)).amax(-1))

net = Bag()
opt = torch.optim.Adam(net.parameters(), 1e-3)
watch = rangewatch.attach(net, opt)
torch.manual_seed(9 + rank)
for step in range(150):
    ids = torch.randint(0, 80, (16, 10))
    y = ids[:, 0] % 4
    if step == 70 and rank == 1:
        ids[2, 5] = 80
    loss = F.cross_entropy(net(ids), y)
    opt.zero_grad()
    loss.backward()
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= 2
    opt.step()
    watch.log(loss=loss.item())
