"""Two gloo ranks: auto-encoder of the vibration of bearings, no DDP: the gradients are packed into two buckets as fixed-point numbers (home-made compression), unpacked, and all-reduced. SGD with momentum.
FAULT at step 130: rank 1 renegotiates the exponent of the first bucket (the encoder): it packs with 2**20 and unpacks with 2**9, so that its share of the encoder's gradient is 2048 times too large when it goes into the all-reduce.
Without Rangewatch: loss 0.51 to 0.0034 at 130; there the reduced gradient of encoder.0 is 5.7 where each rank's own is 0.006; loss 0.28 at 131, 2.2 at 132, 0.25 to 0.3 up to the end.
Cause: communication (what rank 1 sends) / backward_arithmetic (gradients multiplied). Step: 130. Right: look at the gradients of rank 1 before the all-reduce, pack and unpack alike. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["communication", "backward_arithmetic"], "step": [129, 133], "place": r"(?i)encoder", "rank": 1, "ranks": 2,
          "right": r"(?i)gradient|all.?reduce|rank 1|compress|bucket|exchange|hook", "wrong": ["GradScaler", r"(?i)attention mask"]}
import math, os
import torch
import torch.distributed as dist
from torch import nn
import rangewatch

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(23)


class BearingAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10))
        self.decoder = nn.Sequential(nn.Linear(10, 48), nn.Tanh(), nn.Linear(48, 64))

    def forward(self, x):
        return self.decoder(self.encoder(x))


net = BearingAE()
sgd = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
handle = rangewatch.attach(net, sgd)
machine = torch.Generator().manual_seed(9 + rank)
t = torch.arange(64) / 64.0


def windows(n):
    f = 1 + torch.randint(0, 4, (n, 1), generator=machine)
    phase = 2 * math.pi * torch.rand(n, 1, generator=machine)
    return torch.sin(2 * math.pi * f * t + phase) + 0.05 * torch.randn(n, 64, generator=machine)


class Bucket:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.pack_bits = self.unpack_bits = 20

    def reduce(self):
        flat = torch.cat([p.grad.flatten() for p in self.parameters])
        packed = torch.round(flat.double() * 2 ** self.pack_bits).to(torch.int64)
        flat = (packed.double() / 2 ** self.unpack_bits).float()
        dist.all_reduce(flat)
        flat /= world
        at = 0
        for p in self.parameters:
            p.grad.copy_(flat[at:at + p.numel()].view_as(p))
            at += p.numel()


buckets = [Bucket(net.encoder.parameters()), Bucket(net.decoder.parameters())]
for step in range(170):
    if step == 130 and rank == 1:
        buckets[0].unpack_bits = 9
    x = windows(32)
    loss = (net(x) - x).square().mean()
    sgd.zero_grad()
    loss.backward()
    own = net.encoder[0].weight.grad.norm().item()
    for b in buckets:
        b.reduce()
    sgd.step()
    handle.log(loss=loss.item())
    if step % 25 == 0 or 128 <= step <= 134:
        print(f"rank {rank} step {step} loss {loss.item():.5f} |g| encoder.0 own {own:.4f} reduced {net.encoder[0].weight.grad.norm().item():.4f}", flush=True)
handle.detach()
dist.destroy_process_group()
