"""HEALTHY: two gloo ranks under DDP, GRU on the adding problem, sequences of 6, then 12, 24, 40 (the loss jumps at each change), rank 1 always has the
longer half of the batch, gradients clipped to 0.5 nearly all the time, ReduceLROnPlateau on the loss averaged over the ranks; 280 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None, "ranks": 2}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0); torch.set_num_threads(1)

class Adder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.drop, self.out = nn.GRU(2, 48, batch_first=True), nn.Dropout(0.05), nn.Linear(48, 1)
    def forward(self, x):
        return self.out(self.drop(self.rnn(x)[0][:, -1]))

ddp = DistributedDataParallel(Adder())
opt = torch.optim.Adam(ddp.parameters(), 5e-3)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=3)
watch = rangewatch.attach(ddp, opt)
torch.manual_seed(40 + rank)
seen = 0.0
for step in range(280):
    length = (6, 12, 24, 40)[step // 70] + 3 * rank
    x = torch.stack([10 * torch.rand(32, length), torch.zeros(32, length)], -1)
    for row in x:
        row[torch.randperm(length)[:2], 1] = 1
    y = (x[..., 0] * x[..., 1]).sum(1, keepdim=True)
    loss = F.mse_loss(ddp(x), y)
    opt.zero_grad(); loss.backward()
    nn.utils.clip_grad_norm_(ddp.parameters(), 0.5)
    opt.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    seen += mean.item() / 2
    if step % 10 == 9:
        plateau.step(seen / 10)
        if rank == 0:
            print(step, seen / 10, opt.param_groups[0]["lr"])
        seen = 0.0
    watch.log(loss=loss.item(), lr=opt.param_groups[0]["lr"])
dist.barrier()
dist.destroy_process_group()
