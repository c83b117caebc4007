"""Two gloo ranks learn a pendulum's energy with a sine-activated MLP; gradients are averaged by hand with all_reduce (no DDP), Adam.
FAULT at step 0: natural. `torch.manual_seed(rank)` comes before the model is built and nobody broadcasts the weights: the ranks begin with different weights and apply the mean of two unrelated gradients to both.
Without Rangewatch: mse falls all the same (3.1 / 4.6 to 0.004 / 0.003, twice as slowly as with one seed: 0.0022), but the norm of the first weight is 4.52 on rank 0 and 4.34 on rank 1 at the end: two different models.
Cause: replicas. Step: 0 to 60. Right: broadcast the weights / same seed. Wrong: lower the learning rate, GradScaler, zero_grad, attention mask."""
EXPECT = {"cause": ["replicas"], "step": [0, 60], "place": None, "rank": None, "ranks": 2,
          "right": r"(?i)broadcast|seed|differ|same (weights|start)|not the same|replica",
          "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)call .{0,20}zero_grad", "(?i)attention mask"]}
import torch
import torch.distributed as dist
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(rank)                # so that each rank draws its own samples


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(2.0 * x)


net = nn.Sequential(nn.Linear(2, 64), Sine(), nn.Linear(64, 64), Sine(), nn.Linear(64, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
handle = rangewatch.attach(net, opt)


def average_gradients():
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


for step in range(300):
    angle, speed = (torch.rand(128, 1) - 0.5) * 6, (torch.rand(128, 1) - 0.5) * 4
    energy = 0.5 * speed ** 2 + 1 - torch.cos(angle)
    loss = (net(torch.cat([angle, speed], 1)) - energy).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    average_gradients()
    opt.step()
    if step % 50 == 0 or step == 299:
        print(f"rank {rank} step {step} mse {loss.item():.4f} |w0| {net[0].weight.norm().item():.5f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
