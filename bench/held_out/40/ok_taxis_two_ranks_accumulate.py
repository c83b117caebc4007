"""Two gloo ranks: duration of taxi rides (two embeddings and an MLP, DistributedDataParallel, NAdam), two micro-batches a step, each rank sees rides from another part of the town.
HEALTHY: the first micro-batch runs in no_sync() and the second outside it, which is how accumulation is meant; between the two the gradients of the ranks differ, at the step they are equal, and so are the weights. The losses of the two ranks differ (two parts of the town).
Without Rangewatch: loss 3.1 and 3.3 to 0.34 and 0.20, weights differ by 0 throughout."""
EXPECT = {"healthy": True, "ranks": 2}
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import rangewatch

ZONES = 50


class Ride(nn.Module):
    def __init__(self):
        super().__init__()
        self.start, self.end = nn.Embedding(ZONES, 8), nn.Embedding(ZONES, 8)
        self.net = nn.Sequential(nn.Linear(18, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, a, b, clock):
        ang = 0.2618 * clock[:, None]
        return self.net(torch.cat([self.start(a), self.end(b), ang.sin(), ang.cos()], 1))[:, 0]


def main():
    dist.init_process_group(backend="gloo")
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1); torch.manual_seed(4)
    place = torch.rand(ZONES, 2) * 3
    g = torch.Generator().manual_seed(rank + 20)

    def rides(n):
        a = torch.randint(25 * rank, 25 * rank + 25, (n,), generator=g)
        b = torch.randint(0, ZONES, (n,), generator=g)
        clock = 24 * torch.rand(n, generator=g)
        jam = 1 + 0.4 * torch.sin(0.2618 * clock)
        return a, b, clock, (place[a] - place[b]).norm(dim=1) * jam + 0.1 * torch.randn(n, generator=g)

    ddp = DDP(Ride())
    opt = torch.optim.NAdam(ddp.parameters(), lr=1e-2)
    handle = rangewatch.attach(ddp, opt)
    for step in range(200):
        opt.zero_grad()
        with ddp.no_sync():
            *x, y = rides(32)
            first = nn.functional.mse_loss(ddp(*x), y) / 2
            first.backward()
        *x, y = rides(32)
        second = nn.functional.mse_loss(ddp(*x), y) / 2
        second.backward()
        opt.step()
        loss = (first + second).item()
        handle.log(loss=loss)
        if step % 25 == 0 or step == 199:
            w = ddp.module.net[0].weight.detach().clone()
            all_w = [torch.empty_like(w) for _ in range(2)]
            dist.all_gather(all_w, w)
            print(f"rank {rank} step {step} loss {loss:.4f} weights differ by {(all_w[0] - all_w[1]).abs().max().item():.1e}", flush=True)
    handle.detach()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
