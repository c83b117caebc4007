"""Two gloo ranks forecast the load of two unlike power stations (GRU, hand-written averaging of the gradients by all_reduce, no DDP, Adam) (thread: 'the losses of my ranks differ by a lot, is my DDP broken?').
HEALTHY: rank 0 has the calm station, rank 1 the noisy one, so rank 1's loss stays many times higher (its noise); weights are broadcast at the start, gradients averaged in each step, and the weights stay equal.
Without Rangewatch: rank 0 loss 0.60 to 0.02-0.04, rank 1 0.91 to 0.14-0.41 (the noise of its station alone is 0.20); the checksums of both ranks are equal to the last digit."""
EXPECT = {"healthy": True, "ranks": 2}
import math
import torch
import torch.distributed as dist
from torch import nn
import rangewatch

dist.init_process_group(backend="gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(70 + rank)
hours = torch.arange(4000.0)
series = (1 + 0.1 * rank) * torch.sin(2 * math.pi * hours / 24) + 0.4 * torch.sin(2 * math.pi * hours / 168) + (0.05, 0.45)[rank] * torch.randn(4000)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 32, batch_first=True)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        h, _ = self.gru(x)
        return self.out(h[:, -1])


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        p.grad /= world


model = Forecaster()
for p in model.parameters():
    dist.broadcast(p.data, 0)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    at = torch.randint(0, 3970, (24,)).tolist()
    x = torch.stack([series[i:i + 24] for i in at]).unsqueeze(-1)
    y = torch.stack([series[i + 24] for i in at]).unsqueeze(-1)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    average_gradients(model)
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 30 == 0 or step == 179:
        print(f"rank {rank} step {step} loss {loss.item():.4f} checksum {sum(p.double().sum().item() for p in model.parameters()):.6f}", flush=True)
handle.detach()
dist.destroy_process_group()
