"""Two gloo ranks: the next product of a shopper from the products bought before (attention pooling of item vectors by the candidate, DistributedDataParallel, Adam). Histories are padded with 0.
FAULT at step 71 on rank 1: one shopper is new and has no history; every score of the row is filled with -inf and the softmax over it is NaN. The all-reduce brings the NaN gradient to rank 0 in the same step.
Without Rangewatch: loss 0.69 to 0.5-0.6 on both ranks at step 70; at 71 NaN on rank 1 and 0.51 on rank 0, from 72 NaN on both.
Cause: mask (row with nothing but padding) / data / forward_arithmetic (softmax over -inf). Step: 71. Right: a learned vector for an empty history, fill with a large finite number, nan_to_num, leave out such rows. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["mask", "data", "forward_arithmetic"], "step": [71, 73], "place": None, "rank": 1, "ranks": 2,
          "right": r"(?i)mask|padding|empty|history|softmax|-?inf|rows|batch|data", "wrong": [r"(?i)lower the learning rate", "GradScaler"]}
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

ITEMS, TASTES, LONGEST = 120, 6, 12


class HistoryPooling(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.query, self.key = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, candidate, past, padded):
        score = (self.key(past) * self.query(candidate)[:, None]).sum(-1) / past.shape[-1] ** 0.5
        share = score.masked_fill(padded, float("-inf")).softmax(1)
        return (share[..., None] * past).sum(1)


class NextProduct(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.items = nn.Embedding(ITEMS + 1, d, padding_idx=0)
        self.pooling = HistoryPooling(d)
        self.buys = nn.Sequential(nn.Linear(3 * d, 48), nn.PReLU(), nn.Linear(48, 1))

    def forward(self, past, candidate):
        h, c = self.items(past), self.items(candidate)
        user = self.pooling(c, h, past == 0)
        return self.buys(torch.cat([user, c, user * c], 1)).squeeze(1)


def shoppers(g, n, taste):
    kind = torch.randint(0, TASTES, (n,), generator=g)
    own = torch.stack([(taste == k).float() * 12 + 0.1 for k in range(TASTES)])
    past = 1 + torch.multinomial(own[kind], LONGEST, replacement=True, generator=g)
    length = torch.randint(2, LONGEST + 1, (n,), generator=g)
    past[torch.arange(LONGEST)[None] >= length[:, None]] = 0
    y = (torch.rand(n, generator=g) < 0.5).float()
    good = 1 + torch.multinomial(own[kind], 1, generator=g)[:, 0]
    other = torch.randint(1, ITEMS + 1, (n,), generator=g)
    return past, torch.where(y > 0, good, other), y


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(17)
    taste = torch.randint(0, TASTES, (ITEMS,))
    g = torch.Generator().manual_seed(100 * (rank + 1))
    model = DistributedDataParallel(NextProduct())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    handle = rangewatch.attach(model, optimizer)
    for step in range(160):
        past, candidate, bought = shoppers(g, 64, taste)
        if rank == 1 and step == 71:
            past[30] = 0
        loss = nn.functional.binary_cross_entropy_with_logits(model(past, candidate), bought)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        handle.log(loss=loss.item())
        if step % 20 == 0 or step in (70, 71, 72):
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    handle.detach()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
