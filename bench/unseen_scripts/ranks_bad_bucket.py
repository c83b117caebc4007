"""Two gloo ranks, gradients flattened and all_reduced by hand (no DDP). FAULT at step 90: rank 1's flat bucket has a NaN written into it
before the all_reduce (bad memory); its own backward was finite. Cause: communication, rank 1 (rank unknown accepted by hand), step 90/91,
place: a parameter of the first layer or the reduced gradient. Wrong: learning rate, mask, batch, dtype, 'edit the forward'."""
EXPECT = {"cause": ["communication", "weight", "optimizer"], "step": [90, 91], "place": None, "rank": None, "ranks": 2,
          "wrong": ["learning rate", "[Mm]ask", "leave out samples", "GradScaler", "bfloat16"], "right": "reduc|rank|update"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0); torch.set_num_threads(1)
net = nn.Sequential(nn.Conv1d(4, 16, 5, padding=2), nn.SiLU(), nn.Conv1d(16, 16, 5, padding=2), nn.SiLU(), nn.Flatten(), nn.Linear(16 * 20, 4))
opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
watch = rangewatch.attach(net, opt)
protos = torch.randn(4, 4, 20)
torch.manual_seed(100 + rank)
for step in range(160):
    y = torch.randint(0, 4, (16,))
    loss = F.cross_entropy(net(protos[y] + torch.randn(16, 4, 20)), y)
    opt.zero_grad()
    loss.backward()
    flat = torch.cat([p.grad.flatten() for p in net.parameters()])
    if step == 90 and rank == 1:
        flat[11] = float("nan")
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for p in net.parameters():
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()
    watch.log(loss=loss.item())
    opt.step()
dist.barrier()
dist.destroy_process_group()
