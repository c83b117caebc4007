"""Local SGD on two gloo ranks: without DistributedDataParallel, each rank takes 20 steps by itself, then the weights are averaged over the ranks by an
all_reduce; in between the replicas differ, as is meant. HEALTHY.
Without Rangewatch: losses 1.6 to about 0.33; before an average the ranks are apart by 0.035 to 0.05, after it by nothing."""
EXPECT = {"healthy": True, "ranks": 2}
import datetime
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
rank = dist.get_rank()
torch.manual_seed(1155); torch.set_num_threads(1)
WINES = 6
taste = torch.randn(WINES, 18)


class WineNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(18, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.wine = nn.Linear(48, WINES)

    def forward(self, x):
        return self.wine(self.body(x))


model = WineNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
handle = rangewatch.attach(model, optimizer)
own = torch.Generator().manual_seed(130 + rank)
for step in range(240):
    wine = torch.randint(0, WINES, (32,), generator=own)
    x = taste[wine] + 1.5 * torch.randn(32, 18, generator=own)
    loss = F.cross_entropy(model(x), wine)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        apart = model.wine.weight.detach().clone()
        for each in model.parameters():
            dist.all_reduce(each.data)
            each.data.div_(2)
        apart = (apart - model.wine.weight).norm().item()
        print(rank, step, loss.item(), "apart before the average", apart, flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
