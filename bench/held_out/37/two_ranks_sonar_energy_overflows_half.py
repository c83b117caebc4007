"""Two gloo ranks in DistributedDataParallel: an echo's kind (three) told from a ping by a convnet with an energy pooling; Adam, float32 but for the pooling.
FAULT at step 120, rank 1: the pooling sums squares in float16 "to save memory". From this step on rank 1 reads the long pings of its curriculum: the sum passes 65504 and is inf there; rank 0's pings stay short. Rank 1's loss is NaN, the averaged gradient takes it to both.
Without Rangewatch: loss 1.3 to 0.008 on both ranks at step 119; rank 1 NaN at step 120, rank 0 still 0.008 at 120 and NaN from 121 on (with a float32 sum 0.0055 at step 160).
Cause: forward_arithmetic (rank 1). Step: 120. Right: sum in float32 / the mean instead of the sum / float16's largest number. Wrong: lower the learning rate, network, checkpoint, attention mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [119, 122], "place": r"(module\.)?(energy|classify.*|)", "rank": 1, "ranks": 2,
          "right": r"(?i)overflow|float16|fp16|half|65504|float32|inf", "wrong": ["[Ll]ower the learning rate", "attention mask", "checkpoint"]}
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(3716); torch.set_num_threads(1)
dice = torch.Generator().manual_seed(70 + rank)


class HalfEnergy(nn.Module):
    def forward(self, maps):
        return maps.half().pow(2).sum(2)


class Sonar(nn.Module):
    def __init__(self):
        super().__init__()
        self.filters = nn.Conv1d(1, 16, 9)
        self.energy = HalfEnergy()
        self.squash = nn.LayerNorm(16)
        self.classify = nn.Sequential(nn.Linear(16, 24), nn.Hardtanh(), nn.Linear(24, 3))

    def forward(self, ping):
        return self.classify(self.squash(self.energy(self.filters(ping)).float()))


def pings(n, length):
    kind = torch.randint(0, 3, (n,), generator=dice)
    hz = torch.tensor([0.4, 0.9, 1.6])[kind][:, None]
    t = torch.arange(length)
    ping = 6 * torch.sin(hz * t + 6.28 * torch.rand(n, 1, generator=dice)) + 3 * torch.randn(n, length, generator=dice)
    return ping[:, None], kind


model = DistributedDataParallel(Sonar())
adam = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, adam)
for step in range(180):
    ping, kind = pings(12, 6000 if rank == 1 and step >= 120 else 160)
    loss = nn.functional.cross_entropy(model(ping), kind)
    adam.zero_grad()
    loss.backward()
    adam.step()
    if step % 20 == 0 or 118 < step < 123:
        print("rank", rank, step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
