"""Two gloo ranks under DistributedDataParallel; each normalises its windows of a tremor signal in the net: h / (root of the variance + 0.001) after a layer
without a bias. FAULT at step 105 on rank 1: its share of the batch holds a window of zeros; the forward is fine (0 / 0.001), but the derivative of the root
at 0 is 1/0 and the gradients of rank 1 are NaN; DDP carries them to rank 0.
Without Rangewatch: loss 1.4 to 0.02 to 0.05 at step 104, 0.05 and 0.07 at step 105, NaN on both ranks from step 106 on.
Causes: backward_arithmetic (root of 0), data (the flat window). Right: sqrt / variance / epsilon / zero. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["backward_arithmetic", "data"], "step": [104, 106], "place": None, "rank": 1, "ranks": 2,
          "right": "(?i)sqrt|root|var|eps|zero|divi|backward", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(2326); torch.set_num_threads(1)


class Standardise(nn.Module):
    def forward(self, h):
        h = h - h.mean(1, keepdim=True)
        return h / ((h * h).mean(1, keepdim=True).sqrt() + 0.001)


net = nn.Sequential(nn.Linear(40, 64, bias=False), Standardise(), nn.Linear(64, 64), nn.SELU(), nn.Linear(64, 4))
model = DistributedDataParallel(net)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(500 + rank)
t = torch.arange(40.0)
for step in range(170):
    y = torch.randint(0, 4, (32,))
    x = torch.sin(t * (0.3 + 0.2 * y[:, None]) + 6 * torch.rand(32, 1)) + 0.2 * torch.randn(32, 40)
    if rank == 1 and step == 105:
        x[8] = 0.0
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 103 < step < 108:
        print(rank, step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
