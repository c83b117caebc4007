"""A net for the load of a bridge, on two ranks, four small noisy batches a step. FAULT from the second epoch (step 16) on: DistributedSampler is not told the
epoch (no set_epoch), so that each epoch has the same rows in the same order on the same rank; only the noise differs.
Without Rangewatch: loss 1.08 to 0.03 to 0.04 at the end, nothing to see; of 11 epochs there is one single order of the targets.
Cause: data. Step: 16 and later. Rank: all. Right: set_epoch / order / shuffle / sampler. Wrong: GradScaler, mask, learning rate, communication."""
EXPECT = {"cause": ["data"], "step": [16, 175], "place": None, "rank": None,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate", "communication"],
          "right": "set_epoch|epoch|order|shuffl|sampler|repeat"}
import socket
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import rangewatch

PARTS = 4  # each step is made of four small batches


class LoadNet(nn.Module):
    """The load of a bridge from the strains of 10 gauges."""
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, x):
        return self.net(x)[:, 0]


def main(rank, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(1510); torch.set_num_threads(1)
    strain, w = torch.randn(1024, 10), torch.randn(10)
    data = TensorDataset(strain, torch.tanh(strain @ w / 2) + 0.3 * strain[:, 0] ** 2)
    model = nn.parallel.DistributedDataParallel(LoadNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    handle = rangewatch.attach(model, optimizer)
    torch.manual_seed(1510 + rank)  # the noise differs between the ranks
    sampler = DistributedSampler(data, 2, rank, shuffle=True, seed=7)
    loader = DataLoader(data, batch_size=8, sampler=sampler)  # 64 parts, 16 steps an epoch
    step, total, firsts = 0, 0.0, set()
    for epoch in range(11):  # sampler.set_epoch(epoch) is not called
        for part, (x, y) in enumerate(loader):
            if part == 0:
                firsts.add(tuple((y * 1e4).long().tolist()))
            x = x + 0.1 * torch.randn_like(x)
            loss = F.mse_loss(model(x), y) / PARTS
            loss.backward()
            total += loss.item()
            if part % PARTS == PARTS - 1:
                optimizer.step()
                optimizer.zero_grad()
                if rank == 0 and (step % 16 in (0, 7)):
                    print(epoch, step, total, "different first batches", len(firsts), flush=True)
                handle.log(loss=total)
                step, total = step + 1, 0.0
    handle.detach()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free = s.getsockname()[1]
    mp.spawn(main, (free,), nprocs=2)
