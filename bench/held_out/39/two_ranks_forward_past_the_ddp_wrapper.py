"""Two gloo ranks: a convnet counts pulses in a signal (DistributedDataParallel, SGD with momentum, each rank its own shard).
FAULT at step 0: the loop calls `ddp.module(x)` ("so that the checkpoint's names fit") and so goes past the wrapper: DDP's hooks are never armed, the gradients are not averaged and the two replicas part.
Without Rangewatch: loss 1.4 to 0.2-0.6 on rank 0 and 0.35-2.0 on rank 1; the heads of the two ranks differ by 0.005 after step 0, 0.13 at 25, 0.80 at 100, 1.25 at 199 (through the wrapper they are bound to be equal).
Cause: communication (gradients not reduced) / replicas. Step: from 0. Right: call the DDP wrapper itself. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["communication", "replicas"], "step": [0, 60], "place": None, "rank": None, "ranks": 2,
          "right": r"(?i)ddp|DistributedDataParallel|all.?reduce|averag|synchroni|wrapper|replica|ranks", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import rangewatch

dist.init_process_group("gloo")
me = dist.get_rank()
torch.manual_seed(50)
torch.set_num_threads(1)
shard = torch.Generator().manual_seed(1000 + me)


def pulses(n):
    count = torch.randint(0, 4, (n,), generator=shard)
    x = 0.3 * torch.randn(n, 1, 48, generator=shard)
    for i, c in enumerate(count.tolist()):
        at = torch.randperm(11, generator=shard)[:c] * 4 + 2
        x[i, 0, at] += 2.0
        x[i, 0, at + 1] -= 1.0
    return x, count


class PulseCounter(nn.Module):
    def __init__(self):
        super().__init__()
        self.detector = nn.Sequential(nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 16, 3, padding=1), nn.ReLU())
        self.count_head = nn.Linear(16, 4)

    def forward(self, x):
        return self.count_head(self.detector(x).mean(2) * 4)


ddp = DDP(PulseCounter())
opt = torch.optim.SGD(ddp.parameters(), lr=0.03, momentum=0.9)
handle = rangewatch.attach(ddp, opt)
for step in range(200):
    x, count = pulses(16)
    logits = ddp.module(x)
    loss = nn.functional.cross_entropy(logits, count)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 0 or step == 199:
        w = ddp.module.count_head.weight.detach()
        both = [torch.empty_like(w) for _ in range(2)]
        dist.all_gather(both, w.clone())
        print(f"rank {me} step {step} loss {loss.item():.4f} heads differ by {(both[0] - both[1]).abs().max().item():.5f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
