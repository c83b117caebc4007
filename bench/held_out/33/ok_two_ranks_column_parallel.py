"""Two gloo ranks share ONE wide layer: each rank holds half of the hidden units (tensor parallel, own autograd function for the sum), the same batch on both (AdamW).
HEALTHY: the weights of the ranks differ by design and their gradients are never averaged; only the last bias is the same.
Without Rangewatch: loss 1.73 to 0.02 on both ranks, the same number."""
EXPECT = {"healthy": True, "ranks": 2}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
g = torch.Generator().manual_seed(91)                # the data: the same on both ranks
centres = 1.2 * torch.randn(6, 20, generator=g)


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Half(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.column = nn.Linear(20, width // 2)
        self.row = nn.Linear(width // 2, 6, bias=False)
        self.bias = nn.Parameter(torch.zeros(6))

    def forward(self, x):
        return SumOverRanks.apply(self.row(F.silu(self.column(x)))) + self.bias


torch.manual_seed(500 + rank)
net = Half(96)
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(170):
    y = torch.randint(0, 6, (48,), generator=g)
    x = centres[y] + torch.randn(48, 20, generator=g)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 169:
        print(rank, step, loss.item(), "sum of weights", sum(p.sum() for p in net.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
