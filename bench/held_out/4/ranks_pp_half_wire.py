"""Two gloo ranks, a pipeline of two stages by send and recv, four microbatches a step. FAULT at step 100: to halve the traffic the hidden states are
sent as float16; the residual stream of the first stage holds a column of 80,000 by design of its scale (an outlier channel), above 65504: what arrives is
inf, and the second stage's output is NaN. Without Rangewatch: loss 2.1 to 0.26 at step 99, NaN at step 100 on rank 1, gradients NaN on both.
Report: zphang/minimal-llama#4 (naive pipeline in float16: NaN, "this seems to be an overflow"), pytorch/pytorch#116183.
Cause: communication (what is sent is finite, what arrives is not), or forward arithmetic by float16. Rank: 1, the first with a value that is not
finite. Right: float16 / send / bfloat16 / float32 / overflow. Wrong: learning rate, data, mask."""
EXPECT = {"cause": ["communication", "forward_arithmetic", "data"], "step": [100, 101], "place": None, "rank": 1, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "leave out samples"],
          "right": "float16|fp16|half|bfloat16|float32|overflow|recv|receiv|communicat"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(89 + rank); torch.set_num_threads(1)
D, ROWS, PARTS = 32, 16, 4


class First(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.ff = nn.Linear(12, D), nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))

    def forward(self, x):
        x = self.inp(x)
        return (x + self.ff(x)) * torch.cat([torch.full((1,), 80000.0), torch.ones(D - 1)])


class Second(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.ff, self.head = nn.LayerNorm(D), nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D)), nn.Linear(D, 8)

    def forward(self, x):
        x = self.norm(x * torch.cat([torch.full((1,), 1 / 80000.0), torch.ones(D - 1)]))
        return self.head(x + self.ff(x))


model = First() if rank == 0 else Second()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
watch = rangewatch.attach(model, optimizer)
gen = torch.Generator().manual_seed(5)  # the same batches on both: the first stage reads x, the second y
pattern = torch.randn(12, 8, generator=gen)
for step in range(130):
    wire, total = (torch.float32 if step < 100 else torch.float16), 0.0
    optimizer.zero_grad()
    for _ in range(PARTS):
        x = torch.randn(ROWS, 12, generator=gen)
        y = (x @ pattern).argmax(1)
        if rank == 0:
            hidden = model(x)
            dist.send(hidden.detach().to(wire), 1)
            grad = torch.empty(ROWS, D)
            dist.recv(grad, 1)
            hidden.backward(grad)
        else:
            hidden = torch.empty(ROWS, D, dtype=wire)
            dist.recv(hidden, 0)
            hidden = hidden.float().requires_grad_()
            loss = F.cross_entropy(model(hidden), y) / PARTS
            loss.backward()
            dist.send(hidden.grad, 0)
            total += loss.item()
    optimizer.step()
    if rank == 1:
        watch.log(loss=total)
        if step % 15 == 0 or 98 <= step < 103:
            print(step, round(total, 4), flush=True)
dist.barrier(); dist.destroy_process_group()
