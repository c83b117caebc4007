"""Two gloo ranks, gradients sent as fp16 by hand, static loss scale. FAULT from step 100: the scale is raised from 2^8 to 2^20: each rank's
own fp32 gradients are finite, the fp16 copies overflow: Inf comes out of the communication on both ranks, is written into the weights.
Cause: communication (loss_scale accepted), step 100/101. Right: reduction/fp16/scale. Wrong: learning rate, mask, batch, forward."""
EXPECT = {"cause": ["communication", "loss_scale", "optimizer", "weight"], "step": [100, 101], "place": None, "rank": None, "ranks": 2,
          "wrong": ["learning rate", "[Mm]ask", "leave out samples"], "right": "reduc|scale|update|ranks"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0); torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 5))
opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
watch = rangewatch.attach(net, opt)
protos = torch.randn(5, 20)
torch.manual_seed(30 + rank)
for step in range(150):
    scale = 2.0 ** 8 if step < 100 else 2.0 ** 20
    y = torch.randint(0, 5, (32,))
    loss = F.cross_entropy(net(protos[y] + torch.randn(32, 20)), y)
    opt.zero_grad()
    (loss * scale).backward()
    for p in net.parameters():
        small = p.grad.half()
        dist.all_reduce(small)
        p.grad.copy_(small.float() / (2 * scale))
    opt.step()
    watch.log(loss=loss.item())
dist.barrier()
dist.destroy_process_group()
