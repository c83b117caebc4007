"""Two gloo ranks, local SGD: each trains alone on its own data for 10 steps, then weights are averaged (momentum is the rank's own). HEALTHY: by design
the replicas are apart between two averages. Without Rangewatch: loss 2.3 to 0.14 on both; apart by 0.03 to 0.08 before an average, 0 after it."""
EXPECT = {"healthy": True, "ranks": 2}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
torch.manual_seed(151)
kinds = torch.randn(10, 20)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
watch = rangewatch.attach(model, optimizer)
gen = torch.Generator().manual_seed(30 + rank)
for step in range(160):
    label = torch.randint(0, 10, (32,), generator=gen)
    loss = F.cross_entropy(model(kinds[label] + 1.2 * torch.randn(32, 20, generator=gen)), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 10 == 9:
        mine = nn.utils.parameters_to_vector(model.parameters()).detach()
        average = mine.clone()
        dist.all_reduce(average)
        average /= 2
        nn.utils.vector_to_parameters(average, model.parameters())
        if step % 20 == 19:
            print(rank, step, round(loss.item(), 4), "apart", round(2 * (mine - average).abs().max().item(), 4), flush=True)
dist.destroy_process_group()
