"""Two gloo ranks, gradients averaged by hand (no DDP wrapper), a small vision model. FAULT from step 0: each rank seeds with seed + rank before the model is
built and nothing broadcasts the first weights: the two replicas are different networks that get the same updates. Without Rangewatch: both
losses fall all the same, 2.3 to 0.07 and 0.04; the largest difference of weights between the ranks is 0.55 at step 0 and at the end.
Report: facebookresearch/detr#544 and antoyang/TubeDETR#15 (another seed per rank before building), sparticlesteve/pytorch-benchmarks#1.
Cause: replicas. Step: 0. Right: broadcast / seed / same weights. Wrong: learning rate, precision, data."""
EXPECT = {"cause": ["replicas"], "step": [0, 1], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "bfloat16", "GradScaler", "leave out samples"],
          "right": "broadcast|seed|DistributedDataParallel|DDP|same weights|initial"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
torch.manual_seed(7)
kinds = torch.randn(10, 1, 12, 12)
torch.manual_seed(7 + rank)
model = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
watch = rangewatch.attach(model, optimizer, replicated=True)
for step in range(160):
    label = torch.randint(0, 10, (32,))
    x = kinds[label] + 1.5 * torch.randn(32, 1, 12, 12)
    loss = F.cross_entropy(model(x), label)
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= 2
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 20 == 0 or step == 159:
        mine = nn.utils.parameters_to_vector(model.parameters()).detach()
        other = mine.clone()
        dist.broadcast(other, 0)
        print(rank, step, round(loss.item(), 4), "apart", round((mine - other).abs().max().item(), 4), flush=True)
dist.destroy_process_group()
