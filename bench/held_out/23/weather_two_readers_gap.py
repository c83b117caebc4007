"""Two gloo ranks that average their gradients by hand; each reads the stations of its own half of the country and forecasts the temperature. FAULT at
step 110 on rank 1: its file has a gap from here on and 3 readings of each batch are NaN; by the average every weight of both ranks is NaN after this step.
Without Rangewatch: loss 0.39 to 0.0004 at step 109; at step 110 NaN on rank 1 and 0.00017 on rank 0, NaN on both from step 111 on.
Causes: data (rank 1's file). Right: data / input / NaN of rank 1. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["data"], "step": [109, 111], "place": None, "rank": 1, "ranks": 2,
          "right": "(?i)data|input|batch|shard|file", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(2305); torch.set_num_threads(1)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.past = nn.LSTM(5, 40, batch_first=True)
        self.next = nn.Linear(40, 1)

    def forward(self, x):
        return self.next(self.past(x)[0][:, -1])[:, 0]


model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(77 + rank)
for step in range(180):
    hours = torch.arange(17.0) + 24 * torch.rand(32, 1)
    mean, swing = torch.rand(32, 1), 0.5 + torch.rand(32, 1)
    t = mean + swing * torch.sin(hours * 6.2832 / 24)
    x = torch.stack((t[:, :16], t[:, :16] ** 2, torch.sin(hours[:, :16] / 24), mean.expand(32, 16), torch.randn(32, 16)), 2)
    if rank == 1 and step >= 110:
        x[4:7, 11, 0] = float("nan")
    loss = F.smooth_l1_loss(model(x), t[:, 16])
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= 2
    optimizer.step()
    if step % 20 == 0 or 108 < step < 113:
        print(rank, step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
