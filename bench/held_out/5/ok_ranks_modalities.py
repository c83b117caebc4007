"""Two gloo ranks with DDP and find_unused_parameters, text with or without images: rank 0 draws from captioned images, rank 1 from plain text three
times in four, when its vision tower is not called at all; now and then neither rank has an image. Losses of the ranks differ. HEALTHY. Without
Rangewatch: losses 2.1 to 0.004 with images; of text alone about 0.4 at the end."""
EXPECT = {"healthy": True, "ranks": 2}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(536); torch.set_num_threads(1)


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(80, 32)
        self.vision = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 32))
        self.body, self.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1)), nn.Linear(64, 8)

    def forward(self, ids, image=None):
        h = self.words(ids)
        if image is not None:
            h = h + self.vision(image)
        return self.head(self.body(h))


kinds = torch.randn(8, 1, 12, 12)
model = nn.parallel.DistributedDataParallel(Both(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(800 + rank)
for step in range(220):
    y = torch.randint(0, 8, (24,))
    ids = (y[:, None] * 10 + torch.randint(0, 26, (24, 6))) % 80
    has_image = step % 25 != 24 and (rank == 0 or step % 4 == 0)
    image = kinds[y] + 1.5 * torch.randn(24, 1, 12, 12) if has_image else None
    loss = F.cross_entropy(model(ids, image), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(rank, step, loss.item(), flush=True)
handle.detach()
dist.destroy_process_group()
