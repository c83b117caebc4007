"""Two gloo ranks with DDP and DistributedSampler(shuffle=True), 20 steps an epoch, SGD. FAULT from step 20: set_epoch is never called, every epoch
has the same batches in the same order on each rank. Without Rangewatch: the loss falls as ever, 1.6 to 0.6; the first batch of
each epoch is the same to the bit.
Report: pytorch/pytorch#31771 (DistributedSampler can't shuffle the dataset), #11324, lucidrains/DALLE-pytorch#230.
Cause: data (batches come again in the same order). Step: the second epoch or later. Right: set_epoch / shuffle / seed. Wrong: learning rate,
precision, replicas."""
EXPECT = {"cause": ["data"], "step": [0, 199], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "bfloat16", "GradScaler", "broadcast", "[Mm]ask"],
          "right": "set_epoch|shuffl|epoch|same order|again"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0); torch.set_num_threads(1)
x = torch.randn(1280, 16)
y = (torch.tanh(x @ torch.randn(16, 24)) @ torch.randn(24, 5) + 0.5 * torch.randn(1280, 5)).argmax(1)
data = TensorDataset(x, y)
loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data, shuffle=True, seed=3))
ddp = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)))
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
watch = rangewatch.attach(ddp, optimizer)
step = 0
for epoch in range(10):
    for inputs, target in loader:
        loss = F.cross_entropy(ddp(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watch.log(loss=loss.item())
        if step % 20 == 0:
            print(rank, step, round(loss.item(), 4), "sum of the batch", round(inputs.double().sum().item(), 6), flush=True)
        step += 1
dist.destroy_process_group()
