"""Two gloo ranks in DistributedDataParallel: a small U-shaped convnet marks the round cell in a 16 by 16 slide (RMSprop).
FAULT at step 96: rank 1's reader meets a slide one line short (cut by the scanner) and raises a ValueError while it stacks the batch; no one catches it. Rank 0 then waits in its all-reduce and falls over a closed connection.
Without Rangewatch: loss 0.69 to 0.07 on both ranks at step 95; then rank 1 ends with ValueError (slides of different shapes), rank 0 with RuntimeError (gloo: connection closed by peer) in its backward.
Cause: crash (rank 1 raised first). Step: 96. Right: rank 1's exception / ValueError / slide of another shape. Wrong: network or NCCL timeout, lower the learning rate, GradScaler."""
EXPECT = {"cause": ["crash"], "step": [94, 97], "place": None, "rank": 1, "ranks": 2, "least": "info",
          "right": r"(?i)rank 1|ValueError|exception|raised|traceback|shape", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "raise the timeout"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import rangewatch

SIZE = 16


class Slides:
    def __init__(self, rank):
        self.g = torch.Generator().manual_seed(3706 + rank)
        self.rank = rank

    def one(self, cut=False):
        yy, xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
        c = 4 + 8 * torch.rand(2, generator=self.g)
        cell = ((yy - c[0]) ** 2 + (xx - c[1]) ** 2 < 9).float()
        picture = cell + 0.6 * torch.randn(SIZE, SIZE, generator=self.g)
        return (picture[:-1], cell[:-1]) if cut else (picture, cell)

    def batch(self, step, n=12):
        rows = [self.one(cut=self.rank == 1 and step == 96 and i == 5) for i in range(n)]
        shapes = {tuple(p.shape) for p, _ in rows}
        if len(shapes) > 1:
            raise ValueError(f"slides of different shapes in one batch: {sorted(shapes)}")
        return torch.stack([p for p, _ in rows])[:, None], torch.stack([c for _, c in rows])[:, None]


class LittleU(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Conv2d(1, 12, 3, padding=1)
        self.shrink = nn.Conv2d(12, 24, 3, stride=2, padding=1)
        self.widen = nn.ConvTranspose2d(24, 12, 2, stride=2)
        self.paint = nn.Conv2d(24, 1, 3, padding=1)

    def forward(self, x):
        a = F.silu(self.enter(x))
        b = F.silu(self.widen(F.silu(self.shrink(a))))
        return self.paint(torch.cat([a, b], 1))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(3706); torch.set_num_threads(1)
model = DDP(LittleU())
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
slides = Slides(rank)
for step in range(180):
    x, y = slides.batch(step)
    loss = F.binary_cross_entropy_with_logits(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 12 == 0 or step > 93:
        print("rank", rank, "step", step, "loss", loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
