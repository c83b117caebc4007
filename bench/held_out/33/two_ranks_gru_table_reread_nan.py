"""Two gloo ranks in DistributedDataParallel: a GRU adds digits it reads (Adagrad). FAULT: before step 115 rank 1 reads its node's cached copy of the readout's second layer again; the
file was cut short and one weight of `readout.2` is NaN there. Rank 0 keeps good weights until the gradients are averaged.
Without Rangewatch: loss 2.5 to 0.3 on both ranks at step 114; rank 1 NaN at step 115, rank 0 still finite at 115 and NaN from step 116 on.
Cause: weight (rank 1). Step: 115. Right: weight / checkpoint / rank 1. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["weight"], "step": [114, 118], "place": r"(module\.)?readout(\.2)?(\.weight)?", "rank": 1, "ranks": 2,
          "right": "(?i)weight|checkpoint|load|rank 1|parameter", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(333); torch.set_num_threads(1)
g = torch.Generator().manual_seed(70 + rank)


class Adder(nn.Module):
    def __init__(self):
        super().__init__()
        self.digits = nn.Embedding(4, 16)
        self.gru = nn.GRU(16, 40, batch_first=True)
        self.readout = nn.Sequential(nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 13))

    def forward(self, x):
        return self.readout(self.gru(self.digits(x))[0][:, -1])


net = Adder()
model = DistributedDataParallel(net)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.03)
handle = rangewatch.attach(model, optimizer)
for step in range(170):
    if step == 115 and rank == 1:
        cached = net.readout[2].weight.detach().clone()
        cached[7, 31] = float("nan")
        net.readout[2].load_state_dict({"weight": cached, "bias": net.readout[2].bias.detach().clone()})
    x = torch.randint(0, 4, (48, 4), generator=g)
    loss = F.cross_entropy(model(x), x.sum(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 113 < step < 118:
        print(rank, step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
