"""Two gloo ranks train a beat detector (GRU over onsets) in DistributedDataParallel. FAULT from step 0 on: each rank makes dist.new_group([rank]) for its data
loader's exchanges, and the wrapper gets that group by mistake: gradients are averaged over one rank, and the two models, equal at first, go apart.
Without Rangewatch: losses 0.73 to 0.18 and 0.17; one weight is -0.169266 on both ranks at step 0, -0.571 and -0.532 at the end.
Variant of: wrapped_over_a_group_of_its_own.
Cause: replicas (communication). Step: 0, seen soon after. Right: process_group / group / gradients are not averaged. Wrong: rate, GradScaler, mask."""
EXPECT = {"cause": ["replicas", "communication"], "step": [0, 60], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "group|averag|all-?_?reduce|DistributedDataParallel|DDP|wrap|synchron"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1217); torch.set_num_threads(1)


class Beats(nn.Module):
    def __init__(self):
        super().__init__()
        self.onsets = nn.GRU(2, 24, batch_first=True)
        self.beat = nn.Linear(24, 1)

    def forward(self, x):
        return self.beat(self.onsets(x)[0]).squeeze(2)


def bars(n, generator):
    period = torch.randint(3, 6, (n, 1), generator=generator)
    first = (torch.rand(n, 1, generator=generator) * period).long()
    beat = ((torch.arange(24) - first) % period == 0).float()
    loud = torch.stack([beat.roll(1, 1), beat.roll(2, 1)], 2)
    return loud + 0.3 * torch.randn(n, 24, 2, generator=generator), beat


own_groups = [dist.new_group([each]) for each in range(2)]
model = DistributedDataParallel(Beats(), process_group=own_groups[rank])  # the default group was meant
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
own = torch.Generator().manual_seed(900 + rank)
for step in range(220):
    x, beat = bars(16, own)
    loss = F.binary_cross_entropy_with_logits(model(x), beat)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0 or step == 219:
        print(rank, step, loss.item(), "weight", model.module.beat.weight[0, 0].item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
