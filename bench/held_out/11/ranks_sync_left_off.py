"""Two gloo ranks, an LSTM in DistributedDataParallel. FAULT at step 100: for a measurement of speed require_backward_grad_sync is set to False (what no_sync()
does) and never set back: from there on each rank trains by itself and the replicas drift apart.
Without Rangewatch: the weights of both ranks are equal up to step 99 (their sum 28.3167), 28.40 and 28.52 at step 101, 32.4 and 33.6 at the end;
the losses go on falling (0.13 at step 99, 0.086 at the end).
Variant of: ranks: gradients_are_never_reduced.
Cause: replicas or communication. Step: 100. Right: all-reduce / no_sync / synchron / replica / DDP. Wrong: rate, GradScaler, attention mask."""
EXPECT = {"cause": ["replicas", "communication"], "step": [99, 125], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "reduce|no_sync|synchron|replica|DDP|DistributedDataParallel|broadcast"}
import datetime
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
rank = dist.get_rank()
torch.manual_seed(1122); torch.set_num_threads(1)
mixing = torch.randn(4, 4)


class ForecastNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.past = nn.LSTM(4, 24, batch_first=True)
        self.next = nn.Linear(24, 4)

    def forward(self, x):
        return self.next(self.past(x)[0][:, -1])


model = DistributedDataParallel(ForecastNet())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
own = torch.Generator().manual_seed(90 + rank)
for step in range(240):
    if step == 100:
        model.require_backward_grad_sync = False
    x = torch.randn(32, 12, 4, generator=own)
    y = torch.tanh((x[:, -1] + 0.7 * x[:, -2]) @ mixing)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0 or step in (99, 101, 239):
        total = sum(each.detach().double().sum() for each in model.parameters()).item()
        print(rank, step, loss.item(), "sum of the weights", total, flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
