"""Two gloo ranks, gradients averaged by hand with all_reduce, an MLP-mixer that finds the brightest of four patches (SGD, Nesterov). FAULT from step 0: the seed has the rank in it before the model is built and nobody broadcasts the weights:
the two replicas begin apart and the averaged gradients fit neither.
Without Rangewatch: loss 1.5 to 0.3 to 0.9; the sums of the weights are 52.6 on rank 0 and 62.0 on rank 1 from step 0 to the end.
Cause: replicas (weight: initialisation). Step: 0. Right: broadcast / same seed / replicas. Wrong: GradScaler, mask, learning rate."""
EXPECT = {"cause": ["replicas"], "step": [-1, 8], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)replica|seed|broadcast|same weights|synchron|initial", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(110 + rank); torch.set_num_threads(1)


class Mixer(nn.Module):
    def __init__(self, patches=4, width=32):
        super().__init__()
        self.embed = nn.Linear(16, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over = nn.Sequential(nn.Linear(patches, 16), nn.GELU(), nn.Linear(16, patches))
        self.within = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        self.head = nn.Linear(patches * width, 4)

    def forward(self, x):
        h = self.embed(x)
        h = h + self.over(self.norm1(h).transpose(1, 2)).transpose(1, 2)
        h = h + self.within(self.norm2(h))
        return self.head(h.flatten(1))


net = Mixer()
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    y = torch.randint(0, 4, (48,))
    x = torch.randn(48, 4, 16) + 0.5 * F.one_hot(y, 4)[..., None]
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(rank, step, loss.item(), "weights", sum(p.sum() for p in net.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
