"""Two gloo ranks under DDP, ReduceLROnPlateau stepped with each rank's own loss instead of the mean. FAULT: the ranks have different shards,
so one lowers its learning rate before the other; from then on the same gradients move the replicas apart for good. Where this happens is
up to the losses, between step 60 and 280. Report: lucidrains/DALLE-pytorch#268, Lightning-AI/pytorch-lightning#8727.
Cause: replicas, learning_rate or optimizer, rank any. Right: the learning rates of the ranks / average the loss / schedule. Wrong: mask, bf16, data."""
EXPECT = {"cause": ["replicas", "learning_rate", "optimizer"], "step": [60, 340], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Mm]ask", "bfloat16", "leave out samples"], "right": "learning rate|schedul|lr"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0); torch.set_num_threads(1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.LSTM(8, 48, batch_first=True), nn.Linear(48, 8)
    def forward(self, x):
        return self.out(self.rnn(x)[0])

net = Net()
ddp = DistributedDataParallel(net)
opt = torch.optim.SGD(ddp.parameters(), 0.3, momentum=0.9)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.1, patience=1, threshold=0.02)
watch = rangewatch.attach(ddp, opt)
mix = 0.5 * torch.randn(8, 8)
torch.manual_seed(20 + rank)
noise = 0.1 if rank == 0 else 1.0
total = 0.0
for step in range(350):
    x = torch.randn(16, 12, 8)
    y = torch.tanh(x.cumsum(1) @ mix) + noise * torch.randn(16, 12, 8)
    loss = F.mse_loss(ddp(x), y)
    opt.zero_grad(); loss.backward()
    nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
    opt.step()
    total += loss.item()
    if step % 20 == 19:
        plateau.step(total / 20)
        print(rank, step, total / 20, opt.param_groups[0]["lr"])
        total = 0.0
    watch.log(loss=loss.item(), lr=opt.param_groups[0]["lr"])
dist.barrier()
dist.destroy_process_group()
