"""Two gloo ranks, manual all_reduce over a list of parameters made before the auxiliary head was added; replicated=True is passed.
FAULT from step 0: head2.* is never reduced, the ranks drift apart there. Cause: replicas (or communication), place head2.*, rank none/any.
Right: reduce head2's gradients / make alike. Wrong: test the GPU's memory as the only advice, learning rate, mask, DDP is there."""
EXPECT = {"cause": ["replicas", "communication"], "step": None, "place": r"head2\..*", "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "leave out samples"], "right": "reduc|all_reduce|average|DistributedDataParallel"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0); torch.set_num_threads(1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(20, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.head1 = nn.Linear(48, 5)
    def forward(self, x):
        h = self.trunk(x)
        return self.head1(h), self.head2(h)

net = Net()
reduced = list(net.parameters())
net.head2 = nn.Linear(48, 2)
opt = torch.optim.AdamW(net.parameters(), 1e-3)
watch = rangewatch.attach(net, opt, replicated=True)
protos = torch.randn(5, 20)
torch.manual_seed(50 + rank)
for step in range(250):
    y = torch.randint(0, 5, (24,))
    x = protos[y] + torch.randn(24, 20)
    a, b = net(x)
    loss = F.cross_entropy(a, y) + 0.5 * F.cross_entropy(b, y % 2)
    opt.zero_grad()
    loss.backward()
    for p in reduced:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    opt.step()
    watch.log(loss=loss.item())
dist.barrier()
dist.destroy_process_group()
