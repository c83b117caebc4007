"""Two gloo ranks with DDP (find_unused_parameters is False), a model of text and images. FAULT at step 100: a batch of text only, on both ranks: the
vision tower is not called, its parameters have no gradient, the reduction is never finished, and DDP raises "Expected to have finished reduction in
the prior iteration" in the forward of step 101. Without Rangewatch: loss 1.75 to 0.003 at step 99, 1.4 at step 100 (finite); both ranks raise
RuntimeError in the forward of step 101.
Report: pytorch/pytorch#43259, modelscope/DiffSynth-Studio#1001, HamPerdredes/SOOD#33 (all with that message).
Cause: crash. Step: 100 (whose step still ended) or 101. Right: find_unused_parameters / unused / the exception. Wrong: learning rate, out of
memory, mask, GradScaler."""
EXPECT = {"cause": ["crash"], "step": [99, 101], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "out of memory"],
          "right": "unused|traceback|exception|RuntimeError|reduction|error"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(511); torch.set_num_threads(1)


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(60, 32)
        self.vision = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 32))
        self.head = nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 6))

    def forward(self, ids, image=None):
        h = self.words(ids)
        if image is not None:
            h = h + self.vision(image)
        return self.head(h)


model = nn.parallel.DistributedDataParallel(TwoTowers())
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
kinds = torch.randn(6, 1, 12, 12)
torch.manual_seed(200 + rank)
for step in range(200):
    y = torch.randint(0, 6, (24,))
    ids = (y[:, None] * 10 + torch.randint(0, 14, (24, 8))) % 60
    image = None if step == 100 else kinds[y] + 1.5 * torch.randn(24, 1, 12, 12)
    loss = F.cross_entropy(model(ids, image), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step > 98:
        print(rank, step, loss.item(), flush=True)
handle.detach()
dist.destroy_process_group()
