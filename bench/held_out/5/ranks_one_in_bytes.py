"""Two gloo ranks with DDP, a depth network. FAULT from step 0: the node of rank 1 has another version of the image library, whose decoder gives bytes,
0 to 255, where rank 0's gives 0 to 1: rank 1's inputs are 255 times as large. The loss falls on both; rank 0, whose gradients are small in the
average, is behind for a hundred steps. Without Rangewatch: loss of rank 0 0.81 to 0.055, of rank 1 3.2 to 0.049.
Report: no report of this very case; meetps/pytorch-semseg#204 and HasnainRaz/FC-DenseNet-TensorFlow#17 are of images that one path divides by 255
and another does not.
Cause: data, of rank 1 (another range than rank 0). Place: the input, or the first layer. Right: input / normalise / scale / batch / preprocessing.
Wrong: learning rate, mask, GradScaler, broadcast."""
EXPECT = {"cause": ["data"], "step": [0, 60], "place": None, "rank": 1, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "broadcast"],
          "right": "input|normali|[Ss]cale|batch|preprocess|data|shard"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(515); torch.set_num_threads(1)


def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU())


class Depth(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.up, self.head = block(3, 12), block(12, 24), block(36, 12), nn.Conv2d(12, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = F.interpolate(self.down2(F.max_pool2d(a, 2)), scale_factor=2)
        return self.head(self.up(torch.cat([a, b], 1)))


model = nn.parallel.DistributedDataParallel(Depth())
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(600 + rank)
for step in range(200):
    depth = F.interpolate(torch.rand(8, 1, 4, 4), size=(20, 20), mode="bilinear")
    image = torch.cat([1 - depth, depth * 0.5, torch.rand(8, 1, 20, 20)], 1).clamp(0, 1)
    image = (image + 0.05 * torch.randn_like(image)).clamp(0, 1)
    if rank == 1:
        image = (image * 255).round()
    loss = F.l1_loss(model(image), depth)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(rank, step, loss.item(), flush=True)
handle.detach()
dist.destroy_process_group()
