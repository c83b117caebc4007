"""Two gloo ranks under DDP with uneven inputs: rank 1 has a fifth fewer batches an epoch and a last batch of one row; `Join` shadows its missing all_reduces. The
last batches of rank 0 are thus averaged with nothing. HEALTHY: replicas stay alike, the waiting at each epoch's end is Join's."""
EXPECT = {"healthy": True, "ranks": 2}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.join import Join
import rangewatch


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    centre = torch.randn(7, 28)
    net = nn.Sequential(nn.Linear(28, 80), nn.LayerNorm(80), nn.ReLU(), nn.Linear(80, 80), nn.LayerNorm(80), nn.ReLU(), nn.Linear(80, 7))
    ddp = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.AdamW(ddp.parameters(), 1e-3)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=20)
    watch = rangewatch.attach(ddp, opt)
    gen = torch.Generator().manual_seed(rank)
    sizes = [16] * 50 if rank == 0 else [16] * 39 + [1]
    for epoch in range(4):
        with Join([ddp]):
            for i, n in enumerate(sizes):
                y = torch.randint(0, 7, (n,), generator=gen)
                x = centre[y] + 1.5 * torch.randn(n, 28, generator=gen)
                loss = F.cross_entropy(ddp(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                warm.step()
                watch.log(loss=loss.item())
        print(rank, epoch, len(sizes), round(loss.item(), 4), flush=True)
        for p in net.parameters():                       # the ranks' models agree before the next epoch (rank 0 went on alone)
            dist.broadcast(p.data, 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
