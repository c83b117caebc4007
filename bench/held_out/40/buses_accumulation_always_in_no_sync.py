"""Two gloo ranks: delays of buses from route, hour and weather (embeddings and an MLP, DistributedDataParallel, AdamW), four micro-batches to a step.
FAULT at step 0: the micro-batches count from 0 to 3 and all but the last are meant to run in no_sync(); the test says `micro < ACCUMULATE`, which is always true, so that the gradients are never averaged over the ranks.
Without Rangewatch: loss 1.2 and 1.0 to 0.04 and 0.07; the weights of the first layer differ by 0.006 after step 0, 0.09 at 20, 0.40 at 179 (with the gradients averaged they would be equal).
Cause: communication (gradients never reduced) / replicas. Step: from 0. Right: leave no_sync for the last micro-batch (micro < ACCUMULATE - 1). Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["communication", "replicas"], "step": [0, 60], "place": None, "rank": None, "ranks": 2,
          "right": r"(?i)no_sync|ddp|DistributedDataParallel|all.?reduce|averag|synchroni|replica|ranks", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import contextlib
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

ACCUMULATE = 4
ROUTES, HOURS = 40, 24


class DelayNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.route = nn.Embedding(ROUTES, 12)
        self.hour = nn.Embedding(HOURS, 6)
        self.mlp = nn.Sequential(nn.Linear(12 + 6 + 3, 64), nn.SiLU(), nn.Linear(64, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, route, hour, weather):
        return self.mlp(torch.cat([self.route(route), self.hour(hour), weather], 1)).squeeze(1)


def day(generator, n, slowness):
    r = torch.randint(0, ROUTES, (n,), generator=generator)
    h = torch.randint(0, HOURS, (n,), generator=generator)
    w = torch.randn(n, 3, generator=generator)
    rush = torch.exp(-(h - 8.0) ** 2 / 8) + torch.exp(-(h - 17.0) ** 2 / 8)
    delay = slowness[r] * (0.5 + 2 * rush) + 0.5 * torch.relu(w[:, 0]) + 0.1 * torch.randn(n, generator=generator)
    return r, h, w, delay


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    slowness = torch.rand(ROUTES)
    g = torch.Generator().manual_seed(10 + rank)
    model = DistributedDataParallel(DelayNet())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    handle = rangewatch.attach(model, optimizer)
    for step in range(180):
        optimizer.zero_grad()
        total = 0.0
        for micro in range(ACCUMULATE):
            sync = model.no_sync() if micro < ACCUMULATE else contextlib.nullcontext()
            r, h, w, delay = day(g, 16, slowness)
            with sync:
                loss = nn.functional.mse_loss(model(r, h, w), delay) / ACCUMULATE
                loss.backward()
            total += loss.item()
        optimizer.step()
        handle.log(loss=total)
        if step % 20 == 0 or step == 179:
            mine = model.module.mlp[0].weight.detach().clone()
            both = [torch.empty_like(mine) for _ in range(2)]
            dist.all_gather(both, mine)
            print(f"rank {rank} step {step} loss {total:.4f} weights differ by {(both[0] - both[1]).abs().max().item():.5f}", flush=True)
    handle.detach()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
