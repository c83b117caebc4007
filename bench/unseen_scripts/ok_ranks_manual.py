"""HEALTHY: two gloo ranks, all_reduce of each gradient by hand, different data, local BatchNorm statistics that differ, replicated=True; 400 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None, "ranks": 2}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
torch.manual_seed(0); torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(16, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 5))
opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
watch = rangewatch.attach(net, opt, replicated=True)
protos = torch.randn(5, 16)
torch.manual_seed(7 + dist.get_rank())
for step in range(400):
    y = torch.randint(0, 5, (32,))
    loss = F.cross_entropy(net(protos[y] + torch.randn(32, 16)), y)
    opt.zero_grad(); loss.backward()
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    opt.step()
    if step % 100 == 99:
        net.eval()
        with torch.no_grad():
            acc = (net(protos).argmax(1) == torch.arange(5)).float().mean()
        net.train()
        watch.log(acc=acc.item())
dist.barrier()
dist.destroy_process_group()
