"""Two gloo ranks, a sound classifier in DistributedDataParallel. FAULT from step 0 on: the class numbers come from iterating a Python set of names,
whose order depends on the process's hash seed (made reproducible here: one order per rank), so that the ranks mean different classes by the same
number. Both see finite losses that stop far above zero; the replicas are equal all the time.
Without Rangewatch: loss 2.13 and 2.09 to 0.70 and 0.73, about log 2; with one order it is below 0.01 at step 100.
Report: google-deepmind/dmvr#6 (label map of a set), sktime/pytorch-forecasting#2293 (hash() differs per rank under ddp),
meta-pytorch/torchrec#4648.
Cause: data (labels), or none named. Step: 0. Right: labels / data / class / batch. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["data", "(none)"], "step": [0, 239], "place": None, "rank": None, "ranks": 2, "least": "info",
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "label|data|class|batch|shuffl|rank|target|loss"}
import random
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(723); torch.set_num_threads(1)
names = ["dog", "rain", "siren", "clock", "crow", "engine", "baby", "saw"]
spectrum = {name: torch.randn(32, 1) for name in names}
order = list(names)
random.Random(1000 + rank).shuffle(order)  # what "for name in set(names)" gives in this process
number = {name: i for i, name in enumerate(order)}


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(32, 40, 3, padding=1), nn.ReLU(), nn.Conv1d(40, 40, 3, padding=1), nn.ReLU())
        self.out = nn.Linear(40, len(names))

    def forward(self, x):
        return self.out(self.conv(x).mean(2))


torch.manual_seed(5)
model = nn.parallel.DistributedDataParallel(Sound())
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(40 + rank)
for step in range(240):
    chosen = [names[i] for i in torch.randint(0, len(names), (32,)).tolist()]
    x = torch.stack([spectrum[c] for c in chosen]) + 0.8 * torch.randn(32, 32, 16)
    y = torch.tensor([number[c] for c in chosen])
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(rank, step, loss.item(), flush=True)
handle.detach()
dist.destroy_process_group()
