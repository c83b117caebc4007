"""Two gloo ranks with DDP, a two-tower model of pictures and captions with a contrastive loss over the captions of both ranks. FAULT from step 0
on: the list for all_gather is [buffer] * world, the same tensor twice: both places hold the captions of one rank. The other rank looks for its
captions among foreign ones, and its loss never falls.
Without Rangewatch: loss 5.6 and 6.0; rank 1 comes down to 1.35, rank 0 stays between 4.5 and 5.3.
Report: PrimeIntellect-ai/prime-rl#691, pytorch/pytorch#5506 and #14632, Lightning-AI/pytorch-lightning#3253 (one tensor repeated in the list).
Cause: communication. Step: 0, or later when it is sure. Right: gather / rank / buffer / collective. Wrong: learning rate, GradScaler, mask."""
EXPECT = {"cause": ["communication"], "step": [0, 150], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "gather|rank|buffer|collective|communicat"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(824); torch.set_num_threads(1)
view_a, view_b = torch.randn(10, 40), torch.randn(10, 30)


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.picture = nn.Sequential(nn.Linear(40, 96), nn.GELU(), nn.Linear(96, 24))
        self.caption = nn.Sequential(nn.Linear(30, 96), nn.GELU(), nn.Linear(96, 24))

    def forward(self, a, b):
        return F.normalize(self.picture(a), dim=1), F.normalize(self.caption(b), dim=1)


def gather(t):
    everyone = [torch.zeros_like(t)] * world
    dist.all_gather(everyone, t.contiguous())
    return everyone


model = nn.parallel.DistributedDataParallel(Towers())
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(80 + rank)
for step in range(260):
    meaning = torch.randn(32, 10)
    a, b = model(meaning @ view_a + 0.5 * torch.randn(32, 40), meaning @ view_b + 0.5 * torch.randn(32, 30))
    captions = torch.cat(gather(b.detach()))
    loss = F.cross_entropy(a @ captions.T / 0.1, torch.arange(32) + 32 * rank)
    pictures = torch.cat(gather(a.detach()))
    loss = (loss + F.cross_entropy(b @ pictures.T / 0.1, torch.arange(32) + 32 * rank)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or step == 259:
        print(rank, step, loss.item(), flush=True)
handle.detach()
dist.destroy_process_group()
