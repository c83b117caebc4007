"""Two gloo ranks, a pipeline of two stages by send and recv, four microbatches a step, hidden states and their gradients sent as bfloat16. The stages
are different modules, only the second has a loss, the first waits for it each time. HEALTHY. Without Rangewatch: loss 2.3 to 0.2 on rank 1."""
EXPECT = {"healthy": True, "ranks": 2}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(157 + rank); torch.set_num_threads(1)
D, ROWS, PARTS = 32, 16, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.ff = nn.LayerNorm(D), nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))

    def forward(self, x):
        return x + self.ff(self.norm(x))


model = nn.Sequential(nn.Linear(12, D), Block(), Block()) if rank == 0 else nn.Sequential(Block(), nn.LayerNorm(D), nn.Linear(D, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
watch = rangewatch.attach(model, optimizer)
gen = torch.Generator().manual_seed(6)
pattern = torch.randn(12, 8, generator=gen)
for step in range(130):
    total = 0.0
    optimizer.zero_grad()
    for _ in range(PARTS):
        x = torch.randn(ROWS, 12, generator=gen)
        y = (x @ pattern).argmax(1)
        wire = torch.empty(ROWS, D, dtype=torch.bfloat16)
        if rank == 0:
            hidden = model(x)
            dist.send(hidden.detach().to(torch.bfloat16), 1)
            dist.recv(wire, 1)
            hidden.backward(wire.float())
        else:
            dist.recv(wire, 0)
            hidden = wire.float().requires_grad_()
            loss = F.cross_entropy(model(hidden), y) / PARTS
            loss.backward()
            dist.send(hidden.grad.to(torch.bfloat16), 0)
            total += loss.item()
    optimizer.step()
    if rank == 1:
        watch.log(loss=total)
        if step % 20 == 0 or step == 129:
            print(step, round(total, 4), flush=True)
dist.barrier(); dist.destroy_process_group()
