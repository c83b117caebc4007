"""Two ranks learn to foretell the load of lifts in a tower. FAULT at step 50: the machine of rank 1 is throttled (its fan has failed); every forward there
takes 150 ms longer, and rank 0 waits for it in each all-reduce. The loss is not harmed; each step takes several times as long.
Without Rangewatch: 20 to 31 ms a step before, 160 to 165 after step 60; loss 0.16 to 0.013.
Cause: straggler (or hardware). Step: 50 or soon after. Rank: 1. Right: rank / slow / wait. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["straggler", "hardware", "data_wait", "communication", "(none)", ""], "step": [45, 139], "place": None,
          "rank": 1, "ranks": 2, "least": "info",
          "wrong": ["(?i)lower the learning rate", "GradScaler", "(?i)attention mask"],
          "right": "(?i)rank|slow|wait|straggl|throttl|hardware"}
import time
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1920); torch.set_num_threads(1)


class Lifts(nn.Module):
    def __init__(self):
        super().__init__()
        self.past = nn.GRU(6, 32, batch_first=True)
        self.load = nn.Linear(32, 6)
        self.pause = 0.0

    def forward(self, x):
        h = self.past(x)[0][:, -1]
        time.sleep(self.pause)  # stands for the throttled clock
        return self.load(h)


def loads(n):
    t = 24 * torch.rand(n, 1, 1) + torch.arange(13).reshape(1, 13, 1) / 4
    return torch.sin(t * torch.arange(1, 7) * 0.26 + torch.arange(6)) + 0.1 * torch.randn(n, 13, 6)


ddp = DistributedDataParallel(Lifts())
optimizer = torch.optim.AdamW(ddp.parameters(), lr=5e-3)
handle = rangewatch.attach(ddp, optimizer)
torch.manual_seed(200 + rank)
begin = time.perf_counter()
for step in range(140):
    if step == 50 and rank == 1:
        ddp.module.pause = 0.15
    series = loads(32)
    loss = F.mse_loss(ddp(series[:, :-1]), series[:, -1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 19 and rank == 0:
        print(step, loss.item(), "ms a step", 50 * (time.perf_counter() - begin), flush=True)
        begin = time.perf_counter()
handle.detach()
dist.destroy_process_group()
