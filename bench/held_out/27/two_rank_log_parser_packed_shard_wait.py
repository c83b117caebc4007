"""Two gloo ranks train a bag-of-words net on log lines, gradients averaged by hand each step (SGD). FAULT from step 70, rank 1: its shard comes to files that are
packed with bz2 and parsed line by line in the training loop; a step of rank 1 takes many times as long, and rank 0 waits for it in the all_reduce.
Without Rangewatch: loss 3e-4 at the end, good; thirty steps take rank 1 0.1 s of own work before step 70 and 1 to 1.8 s after, rank 0 0.1 to 0.2 s with 1.3 to 2.3 s
of waiting.
Cause: hardware, data or communication. Step: 70 on. Rank: 1. Right: slow / wait / straggler / data loading. Wrong: GradScaler, learning rate."""
EXPECT = {"cause": ["hardware", "data", "communication", "(none)"], "step": [69, 110], "place": None, "rank": 1, "ranks": 2, "least": "info",
          "right": "(?i)slow|wait|straggl|load|rank 1|time|behind|input pipeline", "wrong": ["GradScaler", "[Ll]ower the learning rate"]}
import bz2
import random
import time
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(2714); torch.set_num_threads(1)
draw = random.Random(5 + rank)
WORDS = [f"w{i:02d}" for i in range(80)]


def lines(n):
    out = []
    for _ in range(n):
        kind = draw.randrange(4)
        out.append(f"{kind} " + " ".join(draw.choice(WORDS[kind * 15:kind * 15 + 35]) for _ in range(12)))
    return out


packed = bz2.compress("\n".join(lines(5000)).encode(), 9)
plain = [lines(64) for _ in range(6)]
index = {w: i for i, w in enumerate(WORDS)}


def batch(step):
    if rank == 1 and step >= 70:
        text = bz2.decompress(packed).decode().split("\n")
        rows = [line.split() for line in text]
        rows = draw.sample(rows, 64)
    else:
        rows = [line.split() for line in draw.choice(plain)]
    return torch.tensor([[index[w] for w in r[1:]] for r in rows]), torch.tensor([int(r[0]) for r in rows])


net = nn.Sequential(nn.EmbeddingBag(80, 48), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
handle = rangewatch.attach(net, optimizer)
spent = whole = 0.0
for step in range(180):
    start = time.perf_counter()
    x, y = batch(step)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    spent += time.perf_counter() - start
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world
    optimizer.step()
    whole += time.perf_counter() - start
    if step % 30 == 29 or step == 69:
        print(rank, step, loss.item(), f"own work {spent:.2f} s, with the wait {whole:.2f} s", flush=True)
        spent = whole = 0.0
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
